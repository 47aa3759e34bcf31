"""A small convolutional network for handwritten digits, trained here in seconds.

Data: scikit-learn's digits, 1,797 grey images of 8 x 8 with values 0 to 16 and a label. A fixed
split gives 1,197 to train on, of which 64 also calibrate, and 600 held out for the accuracy.
Training runs on one thread with a fixed seed, so the weights are the same in every process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from torch import Tensor, nn

HELD_OUT = 600
CALIBRATION_IMAGES = 64
EPOCHS = 10
BATCH = 50

Images = NDArray[np.uint8]


class Split(NamedTuple):
    """Images uint8 [n, 1, 8, 8] with values 0 to 16, and labels int64 [n]."""

    images: Images
    labels: NDArray[np.int64]


class DigitsNet(nn.Module):
    """Three convolutions with batch normalisation, then a linear head."""

    def __init__(self, channels: tuple[int, int, int] = (16, 32, 32)) -> None:
        super().__init__()
        first, second, third = channels
        self.features = nn.Sequential(
            _block(1, first),
            _block(first, second),
            nn.MaxPool2d(2),
            _block(second, third),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )
        self.head = nn.Linear(third, 10)

    def forward(self, image: Tensor) -> Tensor:
        """uint8 [batch, 1, 8, 8] with values 0 to 16 -> logits [batch, 10]."""
        scaled = image.to(self.head.weight.dtype) / 16
        logits: Tensor = self.head(self.features(scaled))
        return logits


def build() -> nn.Module:
    """The trained network, in evaluation mode."""
    return trained(DigitsNet, EPOCHS)


def trained(make: Callable[[], nn.Module], epochs: int) -> nn.Module:
    """A network made and trained from a fixed seed, in evaluation mode."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # sums are in one order whatever the machine
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return _train(make(), training_split(), epochs).eval()
    finally:
        torch.set_num_threads(threads)


def calibration() -> Iterator[dict[str, Images]]:
    """64 training images, uint8 [1, 1, 8, 8] each."""
    images = training_split().images[:CALIBRATION_IMAGES]
    for index in range(len(images)):
        yield {"image": images[index : index + 1]}


def evaluate(run: Callable[..., NDArray[np.float32]]) -> dict[str, NDArray[np.float64]]:
    """Accuracy on the 600 images held out: 0 or 1 for each."""
    images, labels = held_out_split()
    right = [
        run(image=images[start : start + BATCH]).argmax(axis=1) == labels[start : start + BATCH]
        for start in range(0, len(images), BATCH)
    ]
    return {"accuracy": np.concatenate(right).astype(np.float64)}


def training_split() -> Split:
    """The images that are not held out."""
    images, labels = _digits()
    return Split(images[HELD_OUT:], labels[HELD_OUT:])


def held_out_split() -> Split:
    """The images that neither training nor calibration sees."""
    images, labels = _digits()
    return Split(images[:HELD_OUT], labels[:HELD_OUT])


@cache
def _digits() -> Split:
    """All images in a seeded order."""
    data = load_digits()
    order = np.random.default_rng(0).permutation(len(data.target))
    images = data.images[order, None].astype(np.uint8)
    return Split(images, data.target[order].astype(np.int64))


def _block(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel_size=3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
    )


def _train(model: nn.Module, data: Split, epochs: int) -> nn.Module:
    images, labels = torch.from_numpy(data.images), torch.from_numpy(data.labels)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(epochs):
        for chosen in torch.randperm(len(images)).split(BATCH):
            optimizer.zero_grad()
            F.cross_entropy(model(images[chosen]), labels[chosen]).backward()
            optimizer.step()
    return model
