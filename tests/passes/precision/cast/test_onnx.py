"""`cast` on ONNX: weights really in 16 bits, float32 where 16 bits would go wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from megacompile_passes.precision.cast.onnx import CastOnnx
from onnx import helper, numpy_helper

from megacompile.errors import PassError
from megacompile.models import onnxfile, openvinofile
from megacompile.models.forms import Onnx
from tests.passes.context import make_context
from tests.passes.onnx_models import cosine, digest, nodes_of, onnx_model, operators

node = helper.make_node
RNG = np.random.default_rng(0)
F32 = np.float32
DTYPES = ["bfloat16", "float16"]


def random(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(F32)


def cast(model: Onnx, tmp_path: Path, dtype: str, data: Any = None, **options: Any) -> Any:
    before = digest(model.path.parent)
    ctx = make_context(tmp_path, model.signature, data)
    result = CastOnnx(dtype=dtype, **options).run(model, ctx)
    assert digest(model.path.parent) == before
    assert {p.name for p in ctx.work.iterdir()} <= {"model.onnx", "model.onnx.data"}
    onnx.checker.check_model(str(result.model.path), full_check=True)
    return result


def two_layers(tmp_path: Path) -> Onnx:
    nodes = [
        node("Gemm", ["x", "W", "b"], ["a"], "first"),
        node("Relu", ["a"], ["c"], "relu"),
        node("MatMul", ["c", "V"], ["d"], "second"),
        node("Softmax", ["d"], ["y"], "softmax"),
    ]
    return onnx_model(
        tmp_path,
        nodes,
        {"x": (["batch", 64], "float32")},
        {"y": ["batch", 64]},
        {"W": random(64, 96) / 8, "b": random(96), "V": random(96, 64) / 8},
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_half_the_size_same_interface(tmp_path: Path, dtype: str) -> None:
    model = two_layers(tmp_path)
    result = cast(model, tmp_path, dtype)
    assert operators(result.model) == ["Cast", "Gemm", "Relu", "MatMul", "Cast", "Softmax"]
    assert (result.sites.matched, result.sites.changed) == (2, 2)
    assert result.model.size_bytes() < 0.6 * model.size_bytes()
    assert result.model.parameters() == model.parameters()
    before, after = onnx.load(str(model.path)), onnx.load(str(result.model.path))
    assert list(before.graph.input) == list(after.graph.input)
    assert list(before.graph.output) == list(after.graph.output)
    for size in (2, 5):
        feeds = {"x": random(size, 64)}
        assert result.model.run(feeds)["y"].dtype == F32
        assert cosine(model, result.model, feeds) > 0.999


def test_bfloat16_loads_in_openvino(tmp_path: Path) -> None:
    model = two_layers(tmp_path)
    result = cast(model, tmp_path, "bfloat16")
    session = openvinofile.open_openvino(result.model.path, precision="bf16")
    feeds = {"x": random(3, 64)}
    got = session.run(feeds, ["y"])["y"].astype(np.float64).ravel()
    want = model.run(feeds)["y"].astype(np.float64).ravel()
    assert got @ want / np.linalg.norm(got) / np.linalg.norm(want) > 0.999


def test_float16_on_a_cpu_is_said_to_be_emulated(tmp_path: Path) -> None:
    assert "emulates" in " ".join(cast(two_layers(tmp_path), tmp_path, "float16").notes)


@pytest.mark.parametrize("dtype", DTYPES)
def test_convolutions(tmp_path: Path, dtype: str) -> None:
    nodes = [
        node("Constant", [], ["W"], value=numpy_helper.from_array(random(8, 3, 3, 3))),
        node("Conv", ["x", "W", "b"], ["a"]),
        node("Relu", ["a"], ["c"]),
        node("MaxPool", ["c"], ["d"], kernel_shape=[2, 2]),
        node("ConvTranspose", ["d", "T"], ["y"]),
    ]
    model = onnx_model(
        tmp_path,
        nodes,
        {"x": (["n", 3, 8, 8], "float32")},
        {"y": ["n", 4, "h", "w"]},
        {"T": random(8, 4, 2, 2), "b": random(8)},
    )
    result = cast(model, tmp_path, dtype)
    assert result.sites.changed == 2
    assert operators(result.model).count("Cast") == 2
    for size in (1, 3):
        assert cosine(model, result.model, {"x": random(size, 3, 8, 8)}) > 0.999


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("selector", ["second", "d", "MatMul"])
def test_kept_nodes(tmp_path: Path, dtype: str, selector: str) -> None:
    result = cast(two_layers(tmp_path), tmp_path, dtype, keep=[selector])
    assert result.sites.skipped == [("second", "named by `keep`")]
    known = {t.name: t.data_type for t in onnx.load(str(result.model.path)).graph.initializer}
    assert known["V"] == onnx.TensorProto.FLOAT


def test_selector_without_match(tmp_path: Path) -> None:
    model = two_layers(tmp_path)
    with pytest.raises(PassError, match="did you mean 'second'"):
        cast(model, tmp_path, "bfloat16", keep=["secnd"])


def test_squares_that_overflow_stay_in_float32(tmp_path: Path) -> None:
    nodes = [
        node("MatMul", ["x", "W"], ["a"], "linear"),
        node("Mul", ["a", "a"], ["s"], "square"),
        node("ReduceMean", ["s"], ["m"], axes=[-1]),
        node("Sqrt", ["m"], ["r"]),
        node("Div", ["a", "r"], ["y"]),
    ]
    model = onnx_model(
        tmp_path,
        nodes,
        {"x": (["n", 64], "float32")},
        {"y": ["n", 64]},
        {"W": np.eye(64, dtype=F32)},
    )
    data = [{"x": random(2, 64) * 300}]
    result = cast(model, tmp_path, "float16", data)
    assert result.sites.changed == 1
    text = " ".join(result.notes)
    assert "square" in text
    assert "65504" in text
    half = {n.name for n in nodes_of(result.model) if any("float16" in i for i in n.input)}
    assert "linear" in half
    assert "square" not in half
    assert cosine(model, result.model, data[0]) > 0.9999


def test_products_that_overflow_stay_in_float32(tmp_path: Path) -> None:
    model = two_layers(tmp_path)
    with pytest.raises(PassError, match="first: 'a' reaches"):
        cast(model, tmp_path, "float16", [{"x": random(2, 64) * 3e5}])


@pytest.mark.parametrize("dtype", DTYPES)
def test_mask_sentinel(tmp_path: Path, dtype: str) -> None:
    lowest = np.finfo(F32).min
    nodes = [
        node("MatMul", ["q", "K"], ["s"]),
        node("Sub", ["one", "keep"], ["drop"]),
        node("Mul", ["drop", "lowest"], ["m"], "mask"),
        node("Add", ["s", "m"], ["a"]),
        node("Softmax", ["a"], ["y"]),
    ]
    model = onnx_model(
        tmp_path,
        nodes,
        {"q": ([3, 8], "float32"), "keep": ([3, 4], "float32")},
        {"y": [3, 4]},
        {"K": random(8, 4), "one": np.array(1, F32), "lowest": np.array(lowest, F32)},
    )
    result = cast(model, tmp_path, dtype)
    assert "lowest" in " ".join(result.notes)
    keep = np.array([[1, 1, 0, 0], [1, 1, 1, 1], [0, 0, 0, 0]], F32)
    feeds = {"q": random(3, 8), "keep": keep}
    got, want = result.model.run(feeds)["y"], model.run(feeds)["y"]
    assert np.isfinite(got).all()
    assert np.abs(got - want).max() < 2e-2


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


@pytest.mark.parametrize("dtype", DTYPES)
def test_nothing_to_cast(tmp_path: Path, dtype: str) -> None:
    model = onnx_model(
        tmp_path, [node("Relu", ["x"], ["y"])], {"x": (["n", 4], "float32")}, {"y": ["n", 4]}, {}
    )
    with pytest.raises(PassError, match="0 of 0"):
        cast(model, tmp_path, dtype)


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


def test_norm_alone_names_the_square(tmp_path: Path) -> None:
    nodes = [
        node("Mul", ["x", "x"], ["s"], "square"),
        node("ReduceMean", ["s"], ["m"], axes=[-1]),
        node("Sqrt", ["m"], ["r"]),
        node("Div", ["x", "r"], ["y"]),
    ]
    model = onnx_model(tmp_path, nodes, {"x": (["n", 64], "float32")}, {"y": ["n", 64]}, {})
    with pytest.raises(PassError, match="square: 's' reaches"):
        cast(model, tmp_path, "float16", [{"x": random(2, 64) * 300}])


def test_quantized_model_is_refused(tmp_path: Path) -> None:
    nodes = [node("DequantizeLinear", ["W", "s"], ["w"]), node("MatMul", ["x", "w"], ["y"])]
    model = onnx_model(
        tmp_path,
        nodes,
        {"x": (["n", 8], "float32")},
        {"y": ["n", 8]},
        {"W": np.ones((8, 8), np.int8), "s": np.array(0.1, F32)},
    )
    with pytest.raises(PassError, match="quantized"):
        cast(model, tmp_path, "float16")
