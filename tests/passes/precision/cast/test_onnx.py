"""`cast` on ONNX: weights really in 16 bits, float32 where 16 bits would go wrong."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from megacompile.errors import PassError
from megacompile.models import openvinofile
from tests.passes.onnx_models import cosine, onnx_model, operators
from tests.passes.precision.cast.onnx_layers import DTYPES, F32, cast, node, random, two_layers


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
def test_nothing_to_cast(tmp_path: Path, dtype: str) -> None:
    model = onnx_model(
        tmp_path, [node("Relu", ["x"], ["y"])], {"x": (["n", 4], "float32")}, {"y": ["n", 4]}, {}
    )
    with pytest.raises(PassError, match="0 of 0"):
        cast(model, tmp_path, dtype)


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
