"""A residual network for handwritten digits, to be trained: small enough for a test.

Data: scikit-learn's digits, 1,797 grey images of 8 x 8 with a label; 600 are held out for the
accuracy after the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from torch import Tensor, nn

HELD_OUT = 600
WIDTH = 64


class Block(nn.Module):
    """A normalized two-layer residual branch with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.wide = nn.Linear(WIDTH, 4 * WIDTH)
        self.narrow = nn.Linear(4 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.dropout(self.narrow(F.gelu(self.wide(self.norm(x)))))


class Classifier(nn.Module):
    """Every row of an image is a token; logits come from their mean."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(8, WIDTH)
        self.place = nn.Parameter(torch.randn(8, WIDTH) * 0.02)
        self.blocks = nn.ModuleList(Block() for _ in range(6))
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, image: Tensor) -> Tensor:
        """float32 [batch, 8, 8] with values 0 to 1 -> logits [batch, 10]."""
        x = self.embed(image) + self.place
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(x.mean(dim=1))
        return logits


def build() -> nn.Module:
    """The network before training, the same in every process."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Classifier()


def batches() -> Iterator[dict[str, NDArray[Any]]]:
    """All training images in one piece: megacompile cuts batches out of it."""
    images, labels = _digits()
    yield {"image": images[HELD_OUT:], "label": labels[HELD_OUT:]}


def loss(outputs: Tensor, batch: dict[str, Tensor]) -> Tensor:
    """Mean cross entropy."""
    return F.cross_entropy(outputs, batch["label"])


def evaluate(run: Callable[..., NDArray[np.float32]]) -> dict[str, NDArray[np.float64]]:
    """Accuracy on the images held out: 0 or 1 for each."""
    images, labels = _digits()
    right = [
        run(image=images[at : at + 50]).argmax(axis=1) == labels[at : at + 50]
        for at in range(0, HELD_OUT, 50)
    ]
    return {"accuracy": np.concatenate(right).astype(np.float64)}


def _digits() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    data = load_digits()
    order = np.random.default_rng(0).permutation(len(data.target))
    return (data.images[order] / 16).astype(np.float32), data.target[order].astype(np.int64)
