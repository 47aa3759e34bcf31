"""Where a normalization can't be folded, or could only be with care."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.passes.graph.fold_batchnorm.onnx_norms import NORM, fold, node, random, statistics
from tests.passes.onnx_models import largest_error, onnx_model


@pytest.mark.parametrize("shape", [["n", 4], ["n", 6, 4]])
def test_matmul_folds_only_where_channels_are_last(tmp_path: Path, shape: list[Any]) -> None:
    nodes = [node("MatMul", ["x", "W"], ["a"]), node("BatchNormalization", ["a", *NORM], ["y"])]
    model = onnx_model(
        tmp_path,
        nodes,
        {"x": (shape, "float32")},
        {"y": [*shape[:-1], 6]},
        {**statistics(6), "W": random(4, 6)},
    )
    result = fold(model, tmp_path)
    assert result.sites.changed == (len(shape) == 2)
    feeds = {"x": random(3, *shape[1:])}
    assert largest_error(model, result.model, feeds) < 1e-4


def test_convolution_with_another_user(tmp_path: Path) -> None:
    nodes = [
        node("Conv", ["x", "W"], ["a"], "conv"),
        node("BatchNormalization", ["a", *NORM], ["y"], "norm"),
        node("Relu", ["a"], ["z"]),
    ]
    model = onnx_model(
        tmp_path,
        nodes,
        {"x": (["n", 3, 8, 8], "float32")},
        {"y": ["n", 8, 6, 6], "z": ["n", 8, 6, 6]},
        {**statistics(8), "W": random(8, 3, 3, 3)},
    )
    result = fold(model, tmp_path)
    assert result.model is model
    assert result.sites.skipped == [("norm", "Conv 'conv' has other users")]
    assert result.notes == ["none of 1 BatchNormalization could be folded"]


def test_convolution_that_is_an_output(tmp_path: Path) -> None:
    nodes = [node("Conv", ["x", "W"], ["a"]), node("BatchNormalization", ["a", *NORM], ["y"])]
    model = onnx_model(
        tmp_path,
        nodes,
        {"x": (["n", 3, 8, 8], "float32")},
        {"y": ["n", 8, 6, 6], "a": ["n", 8, 6, 6]},
        {**statistics(8), "W": random(8, 3, 3, 3)},
    )
    assert "output of the model" in fold(model, tmp_path).sites.skipped[0][1]


def test_overridable_weight_is_left_alone(tmp_path: Path) -> None:
    nodes = [node("Conv", ["x", "W"], ["a"]), node("BatchNormalization", ["a", *NORM], ["y"])]
    model = onnx_model(
        tmp_path,
        nodes,
        {"x": (["n", 3, 8, 8], "float32")},
        {"y": ["n", 8, 6, 6]},
        {**statistics(8), "W": random(8, 3, 3, 3)},
        ["W"],
    )
    assert fold(model, tmp_path).sites.skipped[0][1] == "'W' is not a constant"
