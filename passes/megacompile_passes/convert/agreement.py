"""Whether a captured model answers as the eager one does."""

from __future__ import annotations

import numpy as np

from megacompile.models import Array, as_float64

# At other sizes the same products are summed in another order.
CLOSE = {"rtol": 1e-3, "atol": 1e-4}


def agrees(got: Array, expected: Array) -> bool:
    """Whether two outputs have the same shape and close values."""
    if got.shape != expected.shape:
        return False
    return np.allclose(as_float64(got), as_float64(expected), equal_nan=True, **CLOSE)


def sizes_text(sizes: dict[str, int]) -> str:
    """Sizes as a message shows them."""
    return ", ".join(f"{name}={size}" for name, size in sizes.items()) or "fixed sizes"
