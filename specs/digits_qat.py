"""A slim network for handwritten digits, and the labelled images to train it further with.

So few channels feel every bit: this is what quantization-aware training is for. Images that
`digits_cnn.py:evaluate` judges by are not among those trained on.
"""

from __future__ import annotations

from collections.abc import Iterator

import digits_cnn
import numpy as np
from numpy.typing import NDArray
from torch import nn

CHANNELS = (8, 12, 12)
EPOCHS = 40


def build() -> nn.Module:
    """The trained network, in evaluation mode."""
    return digits_cnn.trained(lambda: digits_cnn.DigitsNet(CHANNELS), EPOCHS)


def labelled() -> Iterator[dict[str, NDArray[np.generic]]]:
    """1,197 images uint8 [n, 1, 8, 8] with their labels int64 [n], in one piece."""
    images, labels = digits_cnn.training_split()
    yield {"image": images, "label": labels}
