"""`fold-batchnorm` on ONNX: same numbers with fewer nodes, and nobody else's weights changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tests.passes.graph.fold_batchnorm.onnx_norms import NORM, fold, node, random, statistics
from tests.passes.onnx_models import largest_error, onnx_model, operators

CASES: dict[str, tuple[str, dict[str, Any], tuple[int, ...], int]] = {
    "conv": ("Conv", {}, (8, 3, 3, 3), 8),
    "grouped": ("Conv", {"group": 3}, (6, 1, 3, 3), 6),
    "transposed": ("ConvTranspose", {}, (3, 8, 2, 2), 8),
    "transposed, grouped": ("ConvTranspose", {"group": 3}, (3, 4, 2, 2), 12),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("constant", [True, False])
def test_convolutions(tmp_path: Path, case: str, bias: bool, constant: bool) -> None:
    op, options, shape, channels = CASES[case]
    weights = {**statistics(channels), "W": random(*shape), "b": random(channels)}
    nodes = []
    if constant:
        nodes = [
            node("Constant", [], [n], value=numpy_helper.from_array(a)) for n, a in weights.items()
        ]
        weights = {}
    nodes += [
        node(op, ["x", "W", "b"] if bias else ["x", "W"], ["a"], **options),
        node("BatchNormalization", ["a", *NORM], ["c"]),
        node("Relu", ["c"], ["y"]),
    ]
    model = onnx_model(
        tmp_path,
        nodes,
        {"x": (["n", 3, "h", 8], "float32")},
        {"y": ["n", channels, "p", "q"]},
        weights,
    )
    result = fold(model, tmp_path)
    assert operators(result.model) == [op, "Relu"]
    assert (result.sites.matched, result.sites.changed) == (1, 1)
    for size in (1, 3):
        assert largest_error(model, result.model, {"x": random(size, 3, 7 + size, 8)}) < 1e-4


@pytest.mark.parametrize("options", [{}, {"transB": 1}, {"alpha": 0.5, "beta": 2.0}])
@pytest.mark.parametrize("bias", [True, False])
def test_gemm(tmp_path: Path, options: dict[str, Any], bias: bool) -> None:
    shape = (6, 4) if "transB" in options else (4, 6)
    nodes = [
        node("Gemm", ["x", "W", "b"] if bias else ["x", "W"], ["a"], **options),
        node("BatchNormalization", ["a", *NORM], ["y"]),
    ]
    model = onnx_model(
        tmp_path,
        nodes,
        {"x": (["n", 4], "float32")},
        {"y": ["n", 6]},
        {**statistics(6), "W": random(*shape), "b": random(6)},
    )
    result = fold(model, tmp_path)
    assert operators(result.model) == ["Gemm"]
    for size in (1, 3):
        assert largest_error(model, result.model, {"x": random(size, 4)}) < 1e-4


def test_several_in_a_row(tmp_path: Path) -> None:
    weights: dict[str, np.ndarray] = {}
    nodes = []
    for i in range(3):
        weights |= {f"{n}{i}": a for n, a in statistics(3).items()} | {f"W{i}": random(3, 3, 1, 1)}
        nodes += [
            node("Conv", [f"x{i}" if i else "x", f"W{i}"], [f"a{i}"]),
            node(
                "BatchNormalization",
                [f"a{i}", *(f"{n}{i}" for n in NORM)],
                ["y" if i == 2 else f"x{i + 1}"],
            ),
        ]
    model = onnx_model(
        tmp_path, nodes, {"x": (["n", 3, 8, 8], "float32")}, {"y": ["n", 3, 8, 8]}, weights
    )
    result = fold(model, tmp_path)
    assert operators(result.model) == ["Conv"] * 3
    assert largest_error(model, result.model, {"x": random(2, 3, 8, 8)}) < 1e-3


def test_shared_weight_is_copied(tmp_path: Path) -> None:
    nodes = [
        node("Conv", ["x", "W"], ["a"], "first"),
        node("BatchNormalization", ["a", *NORM], ["y"]),
        node("Conv", ["x2", "W"], ["z"], "second"),
    ]
    model = onnx_model(
        tmp_path,
        nodes,
        {"x": (["n", 3, 8, 8], "float32"), "x2": (["n", 3, 8, 8], "float32")},
        {"y": ["n", 8, 6, 6], "z": ["n", 8, 6, 6]},
        {**statistics(8), "W": random(8, 3, 3, 3)},
    )
    result = fold(model, tmp_path)
    assert result.sites.changed == 1
    assert "second" in result.notes[0]
    feeds = {"x": random(2, 3, 8, 8), "x2": random(2, 3, 8, 8)}
    assert largest_error(model, result.model, feeds) < 1e-4


def test_old_file_lists_weights_as_inputs(tmp_path: Path) -> None:
    nodes = [node("Conv", ["x", "W"], ["a"]), node("BatchNormalization", ["a", *NORM], ["y"])]
    model = onnx_model(
        tmp_path,
        nodes,
        {"x": (["n", 3, 8, 8], "float32"), "unused": ([1], "float32")},
        {"y": ["n", 8, 6, 6]},
        {**statistics(8), "W": random(8, 3, 3, 3)},
        [*NORM, "W"],
        ir_version=3,
        opset=9,
    )
    result = fold(model, tmp_path)
    assert [v.name for v in onnx.load(str(result.model.path)).graph.input] == ["x", "unused"]
    feeds = {"x": random(2, 3, 8, 8), "unused": random(1)}
    assert largest_error(model, result.model, feeds) < 1e-4


def test_nothing_to_fold_says_so(tmp_path: Path) -> None:
    model = onnx_model(
        tmp_path, [node("Relu", ["x"], ["y"])], {"x": (["n", 4], "float32")}, {"y": ["n", 4]}, {}
    )
    assert fold(model, tmp_path).notes == ["no BatchNormalization could be folded"]
