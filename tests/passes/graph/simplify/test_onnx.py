"""`simplify` on ONNX: fewer nodes, never more weights, and nothing frozen."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from megacompile_passes.graph.simplify import onnx as simplify_onnx
from megacompile_passes.graph.simplify.onnx import SimplifyOnnx

from megacompile.models import onnxfile
from tests.passes.context import make_context
from tests.passes.graph.simplify.onnx_nodes import F32, foldable, node, weight
from tests.passes.onnx_models import digest, largest_error, onnx_model, operators


def test_fewer_nodes_same_numbers_source_untouched(tmp_path: Path) -> None:
    model = foldable(tmp_path)
    before = digest(model.path.parent)
    result = SimplifyOnnx().run(model, make_context(tmp_path, model.signature))
    assert operators(result.model) == ["MatMul", "Mul"]
    assert result.sites.changed == 5
    for size in (2, 5):
        assert largest_error(model, result.model, {"x": weight(size, 8)}) < 1e-4
    assert digest(model.path.parent) == before
    assert result.model.path.parent != model.path.parent


def test_interface_survives(tmp_path: Path) -> None:
    model = foldable(tmp_path)
    source = onnx.load(str(model.path))
    source.metadata_props.add(key="author", value="someone")
    onnx.save_model(source, str(model.path))
    path = SimplifyOnnx().run(model, make_context(tmp_path)).model.path
    result = onnx.load(str(path))
    assert list(result.graph.input) == list(source.graph.input)
    assert list(result.graph.output) == list(source.graph.output)
    assert list(result.metadata_props) == list(source.metadata_props)
    assert onnxfile.opset(result) == 17


def test_nothing_to_do_says_so(tmp_path: Path) -> None:
    model = onnx_model(
        tmp_path,
        [node("MatMul", ["x", "W"], ["y"])],
        {"x": (["batch", 8], "float32")},
        {"y": ["batch", 4]},
        {"W": weight(8, 4)},
    )
    result = SimplifyOnnx().run(model, make_context(tmp_path))
    assert result.model is model
    assert result.sites.changed == 0
    assert "nothing to simplify" in result.notes


def test_overridable_initializer_stays_an_input(tmp_path: Path) -> None:
    nodes = [
        node("Mul", ["x", "K"], ["a"]),
        node("Mul", ["K", "two"], ["b"]),
        node("Identity", ["b"], ["i"]),
        node("Add", ["a", "i"], ["y"]),
    ]
    model = onnx_model(
        tmp_path,
        nodes,
        {"x": (["n"], "float32")},
        {"y": ["n"]},
        {"K": np.array([2], F32), "two": np.array([2], F32)},
        ["K"],
    )
    result = SimplifyOnnx().run(model, make_context(tmp_path))
    assert result.sites.changed == 1
    feeds = {"x": np.ones(1, F32)}
    assert result.model.run(feeds)["y"] == [6]
    assert result.model.run({**feeds, "K": np.array([10], F32)})["y"] == [30]


def test_old_files_list_every_weight_as_input(tmp_path: Path) -> None:
    nodes = [node("Identity", ["W"], ["V"]), node("MatMul", ["x", "V"], ["y"])]
    model = onnx_model(
        tmp_path,
        nodes,
        {"x": (["batch", 8], "float32")},
        {"y": ["batch", 4]},
        {"W": weight(8, 4)},
        ["W"],
        ir_version=3,
        opset=9,
    )
    result = SimplifyOnnx().run(model, make_context(tmp_path))
    assert [v.name for v in onnx.load(str(result.model.path)).graph.input] == ["x"]
    assert largest_error(model, result.model, {"x": weight(3, 8)}) < 1e-5


@pytest.mark.parametrize("external", [True, False])
def test_large_weights_are_stripped_and_put_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, external: bool
) -> None:
    monkeypatch.setattr(simplify_onnx, "STRIP_BYTES", 10_000)
    monkeypatch.setattr(simplify_onnx, "LARGE_TENSOR_BYTES", 1_000)
    constant = node("Constant", [], ["V"], value=onnx.numpy_helper.from_array(weight(64, 64)))
    nodes = [
        constant,
        node("Identity", ["x"], ["i"]),
        node("MatMul", ["i", "W"], ["a"]),
        node("MatMul", ["a", "V"], ["b"]),
        node("MatMul", ["b", "W"], ["c"]),
        node("Add", ["c", "bias"], ["y"]),
    ]
    model = onnx_model(
        tmp_path,
        nodes,
        {"x": (["batch", 64], "float32")},
        {"y": ["batch", 64]},
        {"W": weight(64, 64), "bias": weight(64), "dead": weight(64, 64)},
    )
    if external:
        onnxfile.write(onnx.load(str(model.path)), model.path)
    before = digest(model.path.parent)
    result = SimplifyOnnx().run(model, make_context(tmp_path))
    assert operators(result.model) == ["MatMul", "MatMul", "MatMul", "Add"]
    assert [v.name for v in onnx.load(str(result.model.path)).graph.input] == ["x"]
    assert result.model.parameters() == 2 * 64 * 64 + 64
    for size in (2, 5):
        assert largest_error(model, result.model, {"x": weight(size, 64)}) < 1e-5
    assert digest(model.path.parent) == before
