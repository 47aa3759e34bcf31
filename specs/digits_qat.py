"""Labelled digits to train on: those that digits_cnn.py trained with, none that it evaluates."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits

HELD_OUT = 600  # as in digits_cnn.py: the first of the seeded order are evaluated


def labelled() -> Iterator[dict[str, NDArray[np.generic]]]:
    """1,197 images uint8 [n, 1, 8, 8] with their labels int64 [n], in one piece."""
    data = load_digits()
    order = np.random.default_rng(0).permutation(len(data.target))[HELD_OUT:]
    yield {
        "image": data.images[order, None].astype(np.uint8),
        "label": data.target[order].astype(np.int64),
    }
