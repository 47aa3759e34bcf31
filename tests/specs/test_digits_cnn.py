"""The digits spec's hooks: the same weights in every process, accuracy, disjoint data."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import numpy as np
import pytest
import torch

from .conftest import load_hooks, runner, state_hash

pytest.importorskip("sklearn")


@pytest.fixture(scope="module")
def hooks() -> ModuleType:
    return load_hooks("digits_cnn")


@pytest.fixture(scope="module")
def model(hooks: ModuleType) -> torch.nn.Module:
    module: torch.nn.Module = hooks.build()
    return module


def test_the_same_weights_in_every_process(
    model: torch.nn.Module, weights_hash: Callable[[str], str]
) -> None:
    assert weights_hash("digits_cnn") == state_hash(model)


def test_training_leaves_the_random_state_and_threads(hooks: ModuleType) -> None:
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    hooks.build()
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == threads


def test_the_original_reads_digits(hooks: ModuleType, model: torch.nn.Module) -> None:
    scores = hooks.evaluate(runner(model))["accuracy"]
    assert scores.shape == (hooks.HELD_OUT,)
    assert set(scores) <= {0.0, 1.0}
    assert scores.mean() > 0.97, "chance is 0.1"


def test_calibration_is_apart_from_evaluation(hooks: ModuleType) -> None:
    held_out = {image.tobytes() for image in hooks.held_out_split().images}
    samples = [sample["image"] for sample in hooks.calibration()]
    assert len(samples) == hooks.CALIBRATION_IMAGES
    assert {(sample.shape, sample.dtype) for sample in samples} == {((1, 1, 8, 8), np.dtype("u1"))}
    assert max(sample.max() for sample in samples) == 16
    assert held_out.isdisjoint(sample.tobytes() for sample in samples)
