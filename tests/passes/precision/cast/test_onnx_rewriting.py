"""Casts in the graph: shared weights, bodies, inputs with a default."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from megacompile.models import onnxfile
from tests.passes.onnx_models import cosine, onnx_model
from tests.passes.precision.cast.onnx_layers import DTYPES, F32, RNG, cast, node, random


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("keep", [None, ["emb"]])
def test_tied_weight(tmp_path: Path, dtype: str, keep: list[str] | None) -> None:
    nodes = [
        node("Gather", ["W", "ids"], ["e"], "emb"),
        node("LayerNormalization", ["e", "g"], ["n"]),
        node("Gemm", ["n", "W"], ["y"], "head", transB=1),
    ]
    model = onnx_model(
        tmp_path,
        nodes,
        {"ids": (["seq"], "int64")},
        {"y": ["seq", 128]},
        {"W": random(128, 64), "g": np.ones(64, F32)},
    )
    result = cast(model, tmp_path, dtype, keep=keep)
    assert result.model.parameters() == model.parameters() + (128 * 64 if keep else 0)
    assert ("16448" in " ".join(result.notes)) == bool(keep)
    assert cosine(model, result.model, {"ids": RNG.integers(0, 128, 5)}) > 0.999


@pytest.mark.parametrize("dtype", DTYPES)
def test_bodies_are_left_alone(tmp_path: Path, dtype: str) -> None:
    out = helper.make_tensor_value_info("t", onnx.TensorProto.FLOAT, None)
    other = helper.make_tensor_value_info("e", onnx.TensorProto.FLOAT, None)
    then = helper.make_graph([node("MatMul", ["a", "W"], ["t"], "inner")], "t", [], [out])
    orelse = helper.make_graph([node("Identity", ["a"], ["e"])], "e", [], [other])
    nodes = [
        node("MatMul", ["x", "W"], ["a"], "outer"),
        node("If", ["c"], ["y"], then_branch=then, else_branch=orelse),
    ]
    model = onnx_model(
        tmp_path,
        nodes,
        {"x": (["n", 64], "float32"), "c": ([1], "bool")},
        {"y": ["n", 64]},
        {"W": random(64, 64) / 8},
    )
    result = cast(model, tmp_path, dtype)
    assert result.sites.skipped[0][0] == "inner"
    for condition in (True, False):
        feeds = {"x": random(3, 64), "c": np.array([condition])}
        assert cosine(model, result.model, feeds) > 0.999


def test_overridable_weight_stays_an_input(tmp_path: Path) -> None:
    nodes = [node("MatMul", ["x", "W"], ["a"]), node("MatMul", ["a", "V"], ["y"])]
    model = onnx_model(
        tmp_path,
        nodes,
        {"x": (["n", 16], "float32")},
        {"y": ["n", 16]},
        {"W": random(16, 16), "V": random(16, 16)},
        ["W"],
    )
    result = cast(model, tmp_path, "float16")
    feeds = {"x": random(3, 16)}
    assert cosine(model, result.model, feeds) > 0.999
    assert cosine(model, result.model, {**feeds, "W": random(16, 16)}) > 0.999
    assert onnxfile.opset(onnx.load(str(result.model.path))) == 17
