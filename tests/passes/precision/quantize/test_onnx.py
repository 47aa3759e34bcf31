"""`quantize` on ONNX: what is 8-bit, what stays in float and why, and that both compute right."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from megacompile_passes.precision.quantize.onnx import QuantizeOnnx
from onnx import helper, numpy_helper

from megacompile.errors import PassError
from megacompile.models import onnxfile
from megacompile.plan.passes import Traits
from tests.passes.context import make_context
from tests.passes.onnx_models import cosine, digest, largest_error, nodes_of, onnx_model, operators
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
@pytest.mark.parametrize("per_channel", [True, False])
def test_every_method(
    tmp_path: Path, method: str, per_channel: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    model = two_layers(tmp_path)
    before = digest(model.path.parent)
    ctx = make_context(tmp_path, model.signature, rows())
    result = QuantizeOnnx(method=method, per_channel=per_channel).run(model, ctx)
    assert (result.sites.matched, result.sites.changed) == (2, 2)
    for size in (2, 5):
        assert cosine(model, result.model, {"x": random(size, 32)}) > 0.99
    assert result.model.size_bytes() < 0.6 * model.size_bytes()
    assert result.model.parameters() == model.parameters()
    assert digest(model.path.parent) == before
    assert sorted(p.name for p in ctx.work.iterdir()) == ["model.onnx", "model.onnx.data"]
    assert capsys.readouterr().out == ""


def test_symmetric_has_no_zero_points(tmp_path: Path) -> None:
    model = two_layers(tmp_path)
    wanted = QuantizeOnnx(method="static").resolve(Traits(backend="tensorrt", symmetric=True))
    result = wanted.run(model, make_context(tmp_path, model.signature, rows()))
    proto = onnxfile.read(result.model.path)
    zeros = {t.name: numpy_helper.to_array(t) for t in proto.graph.initializer}
    pairs = [n for n in proto.graph.node if n.op_type == "DequantizeLinear" and len(n.input) > 2]
    assert all(not zeros[n.input[2]].any() for n in pairs)


@pytest.mark.parametrize("method", METHODS)
def test_quantized_twice(tmp_path: Path, method: str) -> None:
    model = two_layers(tmp_path)
    ctx = make_context(tmp_path, model.signature, rows())
    once = QuantizeOnnx(method=method).run(model, ctx).model
    with pytest.raises(PassError, match="quantized already"):
        QuantizeOnnx(method=method).run(once, make_context(tmp_path, model.signature, rows()))


@pytest.mark.parametrize("method", ["static", "weight-only"])
def test_convolutions_of_an_old_opset_with_constant_nodes(tmp_path: Path, method: str) -> None:
    weight = numpy_helper.from_array(random(8, 3, 3, 3))
    nodes = [
        node("Constant", [], ["W"], value=weight),
        node("Conv", ["x", "W"], ["a"], pads=[1, 1, 1, 1]),
        node("Clip", ["a", "low", "high"], ["b"]),
        node("ConvTranspose", ["b", "T"], ["y"]),
    ]
    model = onnx_model(
        tmp_path,
        nodes,
        {"x": (["n", 3, 8, 8], "float32")},
        {"y": ["n", 4, "h", "w"]},
        {"T": random(8, 4, 2, 2), "low": np.array(-9, F32), "high": np.array(9, F32)},
        opset=11,
    )
    samples = [{"x": random(2, 3, 8, 8)} for _ in range(8)]
    result = QuantizeOnnx(method=method).run(model, make_context(tmp_path, None, samples))
    assert result.sites.changed == 2, result.sites
    assert "opset 11" in result.notes[0]
    assert cosine(model, result.model, {"x": random(3, 3, 8, 8)}) > 0.98


def test_inputs_and_outputs_survive(tmp_path: Path) -> None:
    model = two_layers(tmp_path)
    ctx = make_context(tmp_path, model.signature, rows())
    result = QuantizeOnnx(method="static").run(model, ctx)
    before, after = onnx.load(str(model.path)), onnx.load(str(result.model.path))
    assert list(before.graph.input) == list(after.graph.input)
    assert list(before.graph.output) == list(after.graph.output)
    assert {"QuantizeLinear", "DequantizeLinear"} <= set(operators(result.model))
    assert len({n.name for n in nodes_of(result.model)}) == len(nodes_of(result.model))
    assert largest_error(model, model, rows(1)[0]) == 0


@pytest.mark.parametrize("opset", [20, 21])
def test_int8_activations_behind_a_transpose_open_at_any_opset(tmp_path: Path, opset: int) -> None:
    """ONNX Runtime contradicts itself at opset 21 where a weight of two users is dequantized."""
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        node("Transpose", ["d"], ["t"], perm=[0, 2, 1]),
        node("Reshape", ["t", "shape"], ["r"]),
        node("DequantizeLinear", ["w", "v", "z0"], ["wd"]),
        node("MatMul", ["r", "wd"], ["m"]),
        node("MatMul", ["m", "wd"], ["y"]),
    ]
    weight = RNG.integers(-127, 128, (8, 8), np.int8)
    values = {
        "s": F32(0.1),
        "z": np.int8(3),
        "w": weight,
        "v": F32(0.01),
        "z0": np.int8(0),
        "shape": np.array([0, 8], np.int64),
    }
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["batch", 2, 4])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["batch", 8])],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in values.items()],
    )
    path = tmp_path / "model.onnx"
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10),
        path,
    )
    x = random(3, 2, 4)
    got = onnxfile.open_session(path).run({"x": x}, ["y"])["y"]
    inner = (np.clip(np.rint(x / 0.1) + 3, -128, 127) - 3) * 0.1
    layer = weight.astype(np.float32) * 0.01
    expected = inner.transpose(0, 2, 1).reshape(3, 8) @ layer @ layer
    np.testing.assert_allclose(got, expected, atol=0.02 * np.abs(expected).max())
