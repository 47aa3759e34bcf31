"""The step before the model where MiniLM is served: texts to tokens."""

from __future__ import annotations

from typing import Any

import minilm
import numpy as np
from numpy.typing import NDArray

# The server puts requests of equal shapes into one run. Padded to the next of these lengths,
# sentences of like length are equal.
LENGTHS = (16, 32, 64, 128)


def tokenize(text: NDArray[Any]) -> dict[str, NDArray[np.int64]]:
    """UTF-8 texts, bytes [batch, 1] -> input_ids and attention_mask, int64 [batch, seq]."""
    found = minilm.tokenize([one.decode("utf-8") for one in text.ravel()])
    length = found["input_ids"].shape[1]
    padding = next(size for size in LENGTHS if size >= length) - length
    return {name: np.pad(array, ((0, 0), (0, padding))) for name, array in found.items()}
