"""What stays in float32: what is kept, what leaves float16's range, masks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from megacompile.errors import PassError
from tests.passes.onnx_models import cosine, nodes_of, onnx_model
from tests.passes.precision.cast.onnx_layers import DTYPES, F32, cast, node, random, two_layers


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
