"""Weights in 8 bits: ties, bodies, small columns, and embeddings."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from megacompile_passes.precision.quantize.onnx import QuantizeOnnx
from onnx import helper

from megacompile.errors import PassError
from megacompile.models.forms import Onnx
from tests.passes.context import make_context
from tests.passes.onnx_models import cosine, onnx_model
from tests.passes.precision.quantize.onnx_layers import F32, METHODS, RNG, node, random


@pytest.mark.parametrize("method", ["dynamic", "weight-only"])
def test_bodies_share_one_weight(tmp_path: Path, method: str) -> None:
    def branch(name: str) -> onnx.GraphProto:
        out = helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None)
        return helper.make_graph([node("MatMul", ["x", "W"], [name])], name, [], [out])

    nodes = [node("If", ["c"], ["y"], then_branch=branch("t"), else_branch=branch("e"))]
    model = onnx_model(
        tmp_path,
        nodes,
        {"x": (["batch", 64], "float32"), "c": ([], "bool")},
        {"y": ["batch", 64]},
        {"W": random(64, 64)},
    )
    result = QuantizeOnnx(method=method).run(model, make_context(tmp_path))
    assert (result.sites.matched, result.sites.changed) == (2, 2)
    assert result.model.parameters() == 64 * 64
    for condition in (True, False):
        feeds = {"x": random(3, 64), "c": np.array(condition)}
        assert cosine(model, result.model, feeds) > 0.999


def test_per_channel_keeps_small_columns_alive(tmp_path: Path) -> None:
    scales = np.logspace(-3, 1, 32).astype(F32)
    model = onnx_model(
        tmp_path,
        [node("MatMul", ["x", "W"], ["y"])],
        {"x": (["batch", 64], "float32")},
        {"y": ["batch", 32]},
        {"W": random(64, 32) * scales},
    )
    for method in ("dynamic", "weight-only"):
        result = QuantizeOnnx(method=method).run(model, make_context(tmp_path))
        got = result.model.run({"x": random(16, 64)})["y"]
        assert np.abs(got).max(axis=0).min() > 0


def tied(tmp_path: Path, head: str) -> Onnx:
    nodes = [node("Gather", ["W", "ids"], ["e"], "emb")]
    if head == "Gemm":
        nodes += [node("Gemm", ["e", "W"], ["y"], "head", transB=1)]
    else:
        nodes += [
            node("Transpose", ["W"], ["WT"], perm=[1, 0]),
            node("MatMul", ["e", "WT"], ["y"], "head"),
        ]
    return onnx_model(
        tmp_path, nodes, {"ids": (["seq"], "int64")}, {"y": ["seq", 128]}, {"W": random(128, 64)}
    )


@pytest.mark.parametrize("head", ["Gemm", "MatMul"])
@pytest.mark.parametrize("method", METHODS)
def test_tied_weight(tmp_path: Path, head: str, method: str) -> None:
    model = tied(tmp_path, head)
    samples = [{"ids": RNG.integers(0, 128, 6)} for _ in range(8)]
    ctx = make_context(tmp_path, model.signature, samples)
    if method == "dynamic" and head == "MatMul":
        with pytest.raises(PassError, match="0 of 1"):
            QuantizeOnnx(method=method).run(model, ctx)
        return
    result = QuantizeOnnx(method=method).run(model, ctx)
    assert cosine(model, result.model, {"ids": RNG.integers(0, 128, 9)}) > 0.99
    if result.model.parameters() > model.parameters():
        assert "8192 parameters became 16384" in " ".join(result.notes)
    else:
        assert result.model.parameters() == 8192


def test_weight_only_keeps_a_tie_with_what_is_kept(tmp_path: Path) -> None:
    model = tied(tmp_path, "Gemm")
    with pytest.raises(PassError, match="0 of 2"):
        QuantizeOnnx(method="weight-only", keep=["emb"]).run(model, make_context(tmp_path))


@pytest.mark.parametrize("per_channel", [True, False])
def test_weight_only_embedding(tmp_path: Path, per_channel: bool) -> None:
    nodes = [node("Gather", ["E", "ids"], ["e"]), node("MatMul", ["e", "W"], ["y"])]
    model = onnx_model(
        tmp_path,
        nodes,
        {"ids": (["batch", "seq"], "int64")},
        {"y": ["batch", "seq", 16]},
        {"E": random(100, 32), "W": random(32, 16)},
    )
    quantize = QuantizeOnnx(method="weight-only", per_channel=per_channel)
    result = quantize.run(model, make_context(tmp_path))
    assert result.sites.changed == 2
    assert result.model.parameters() == model.parameters()
    assert cosine(model, result.model, {"ids": RNG.integers(0, 100, (2, 7))}) > 0.999
