"""Samples to be stored, and whether they came back."""

from __future__ import annotations

from collections.abc import Iterator

import ml_dtypes
import numpy as np

from megacompile.models.tensors import Array


def samples(count: int = 10) -> Iterator[dict[str, Array]]:
    """Samples of three dtypes, one of them bfloat16; the first value is the sample's number."""
    for number in range(count):
        x = np.arange(6, dtype=np.float32).reshape(2, 3) + number
        yield {"x": x, "low": x[0].astype(ml_dtypes.bfloat16), "y": np.asarray(number)}


def same(one: dict[str, Array], other: dict[str, Array]) -> bool:
    """Whether two samples are alike bit by bit."""

    def alike(a: Array, b: Array) -> bool:
        return (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())

    return set(one) == set(other) and all(alike(one[name], other[name]) for name in one)
