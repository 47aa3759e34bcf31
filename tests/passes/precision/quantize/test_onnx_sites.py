"""What is quantized and what stays in float, and why."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from megacompile_passes.precision.quantize.onnx import QuantizeOnnx

from megacompile.errors import PassError
from megacompile.models import onnxfile
from tests.passes.context import make_context
from tests.passes.onnx_models import cosine, onnx_model
from tests.passes.precision.quantize.onnx_layers import (
    F32,
    METHODS,
    RNG,
    node,
    random,
    rows,
    two_layers,
)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("selector", ["second", "y", "sec*"])
def test_kept_nodes(tmp_path: Path, method: str, selector: str) -> None:
    model = two_layers(tmp_path)
    ctx = make_context(tmp_path, model.signature, rows())
    result = QuantizeOnnx(method=method, keep=[selector]).run(model, ctx)
    assert result.sites.skipped == [("second", "named by `keep`")]
    floats = {
        t.name
        for t in onnxfile.weights(onnxfile.read(result.model.path)).values()
        if t.data_type == onnx.TensorProto.FLOAT and len(t.dims) == 2
    }
    assert floats == {"V"}


@pytest.mark.parametrize("selector", ["encoder.layer0", "Matmul", "secnd"])
def test_selector_without_match(tmp_path: Path, selector: str) -> None:
    model = two_layers(tmp_path)
    with pytest.raises(PassError, match=selector) as caught:
        QuantizeOnnx(method="dynamic", keep=[selector]).run(model, make_context(tmp_path))
    if selector != "encoder.layer0":
        assert "did you mean" in str(caught.value)


@pytest.mark.parametrize("method", METHODS)
def test_gemm_is_kept_by_its_own_name(tmp_path: Path, method: str) -> None:
    nodes = [
        node("Gemm", ["x", "W", "b"], ["a"], "linear", transB=1),
        node("MatMul", ["a", "V"], ["y"]),
    ]
    model = onnx_model(
        tmp_path,
        nodes,
        {"x": (["batch", 32], "float32")},
        {"y": ["batch", 32]},
        {"W": random(64, 32), "b": random(64), "V": random(64, 32)},
    )
    ctx = make_context(tmp_path, model.signature, rows())
    result = QuantizeOnnx(method=method, keep=["linear"]).run(model, ctx)
    assert (result.sites.matched, result.sites.changed) == (2, 1)
    assert "W" in onnxfile.weights(onnxfile.read(result.model.path)) or method == "dynamic"
    assert cosine(model, result.model, {"x": random(5, 32)}) > 0.99


@pytest.mark.parametrize("mask", [-3.4e38, -1e4, -30])
def test_masks_do_not_wreck_the_range(tmp_path: Path, mask: float) -> None:
    nodes = [
        node("MatMul", ["q", "k"], ["s"]),
        node("Add", ["s", "M"], ["a"], "add"),
        node("Softmax", ["a"], ["p"], "softmax"),
        node("MatMul", ["p", "v"], ["y"]),
    ]
    shapes = {
        "q": (["batch", 8, 16], "float32"),
        "k": (["batch", 16, 8], "float32"),
        "v": (["batch", 8, 16], "float32"),
    }
    model = onnx_model(
        tmp_path,
        nodes,
        shapes,
        {"y": ["batch", 8, 16]},
        {"M": np.triu(np.full((8, 8), mask, F32), 1)},
    )

    def sample(size: int) -> dict[str, np.ndarray]:
        return {"q": random(size, 8, 16) / 4, "k": random(size, 16, 8), "v": random(size, 8, 16)}

    ctx = make_context(tmp_path, model.signature, [sample(2) for _ in range(8)])
    result = QuantizeOnnx(method="static").run(model, ctx)
    assert cosine(model, result.model, sample(3)) > 0.99
    assert {"add", "softmax"} <= {name for name, _ in result.sites.skipped}
    assert "add, softmax" in " ".join(result.notes)


def test_mask_that_is_an_input(tmp_path: Path) -> None:
    nodes = [
        node("MatMul", ["q", "K"], ["s"]),
        node("Add", ["s", "bias"], ["b"], "bias"),
        node("Add", ["b", "mask"], ["a"], "add"),
        node("Softmax", ["a"], ["p"], "softmax"),
        node("MatMul", ["p", "V"], ["y"]),
    ]
    model = onnx_model(
        tmp_path,
        nodes,
        {"q": (["n", 8, 16], "float32"), "mask": (["n", 8, 8], "float32")},
        {"y": ["n", 8, 16]},
        {"K": random(16, 8) / 4, "V": random(8, 16), "bias": random(8)},
    )

    def sample(size: int) -> dict[str, np.ndarray]:
        mask = np.where(RNG.random((size, 8, 8)) < 0.3, F32(-1e4), F32(0))
        return {"q": random(size, 8, 16), "mask": mask}

    ctx = make_context(tmp_path, model.signature, [sample(2) for _ in range(8)])
    result = QuantizeOnnx(method="static").run(model, ctx)
    assert {"bias", "add", "softmax"} <= {name for name, _ in result.sites.skipped}
    assert cosine(model, result.model, sample(3)) > 0.99


@pytest.mark.parametrize("method", METHODS)
def test_overridable_weight_stays_an_input(tmp_path: Path, method: str) -> None:
    model = two_layers(tmp_path, overridable=["W"])
    ctx = make_context(tmp_path, model.signature, rows())
    result = QuantizeOnnx(method=method).run(model, ctx)
    assert (result.sites.matched, result.sites.changed) == (2, 1)
    assert "'W'" in result.sites.skipped[0][1]
    feeds = {"x": random(3, 32)}
    assert cosine(model, result.model, feeds) > 0.99
    assert cosine(model, result.model, {**feeds, "W": random(32, 64)}) > 0.98


@pytest.mark.parametrize("method", METHODS)
def test_nothing_to_quantize(tmp_path: Path, method: str) -> None:
    model = onnx_model(
        tmp_path, [node("Relu", ["x"], ["y"])], {"x": (["n", 4], "float32")}, {"y": ["n", 4]}, {}
    )
    ctx = make_context(tmp_path, model.signature, rows(2, 4))
    with pytest.raises(PassError, match="0 of 0"):
        QuantizeOnnx(method=method).run(model, ctx)


def test_dynamic_leaves_convolutions(tmp_path: Path) -> None:
    model = onnx_model(
        tmp_path,
        [node("Conv", ["x", "W"], ["y"])],
        {"x": (["n", 3, 8, 8], "float32")},
        {"y": ["n", 4, 6, 6]},
        {"W": random(4, 3, 3, 3)},
    )
    with pytest.raises(PassError, match="0 of 1") as caught:
        QuantizeOnnx(method="dynamic").run(model, make_context(tmp_path))
    assert "static" in str(caught.value)
