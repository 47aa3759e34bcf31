"""`simplify` on ONNX: fewer nodes, never more weights, and nothing frozen."""

from __future__ import annotations

import resource
from pathlib import Path

import numpy as np
import onnx
import onnxsim
import pytest
from megacompile_passes.graph.simplify import onnx as simplify_onnx
from megacompile_passes.graph.simplify.onnx import SimplifyOnnx
from onnx import helper

from megacompile.errors import PassError
from megacompile.models import onnxfile
from megacompile.models.forms import Onnx
from tests.passes.context import make_context
from tests.passes.onnx_models import digest, largest_error, onnx_model, operators

node = helper.make_node
RNG = np.random.default_rng(0)
F32 = np.float32


def weight(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(F32)


def foldable(tmp_path: Path) -> Onnx:
    nodes = [
        node("Identity", ["x"], ["a"]),
        node("Transpose", ["W"], ["WT"], perm=[1, 0]),
        node("MatMul", ["a", "WT"], ["b"]),
        node("Shape", ["W"], ["s"]),
        node("Gather", ["s", "zero"], ["n"], axis=0),
        node("Cast", ["n"], ["f"], to=1),
        node("Mul", ["b", "f"], ["y"]),
    ]
    return onnx_model(
        tmp_path,
        nodes,
        {"x": (["batch", 8], "float32")},
        {"y": ["batch", 16]},
        {"W": weight(16, 8), "zero": np.array(0)},
    )


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


def test_tied_weight_stays_one(tmp_path: Path) -> None:
    nodes = [
        node("Gather", ["W", "ids"], ["e"]),
        node("Transpose", ["W"], ["WT"], perm=[1, 0]),
        node("Identity", ["e"], ["i"]),
        node("MatMul", ["i", "WT"], ["y"]),
    ]
    model = onnx_model(
        tmp_path,
        nodes,
        {"ids": ([1, "seq"], "int64")},
        {"y": [1, "seq", 512]},
        {"W": weight(512, 64)},
    )
    result = SimplifyOnnx().run(model, make_context(tmp_path))
    assert result.model.parameters() == 512 * 64
    assert result.model.size_bytes() <= 1.1 * model.size_bytes()
    assert "Identity" not in operators(result.model)
    assert "65536" in " ".join(result.notes)


@pytest.mark.parametrize("kind", ["ConstantOfShape", "Tile", "Expand"])
@pytest.mark.parametrize("side", [2048, 30_000])
def test_nothing_large_is_materialised(tmp_path: Path, kind: str, side: int) -> None:
    inputs = ["s"] if kind == "ConstantOfShape" else ["r", "s"]
    nodes = [
        node(kind, inputs, ["c"]),
        node("Identity", ["c"], ["i"]),
        node("Add", ["i", "x"], ["y"]),
    ]
    model = onnx_model(
        tmp_path,
        nodes,
        {"x": ([side, side], "float32")},
        {"y": [side, side]},
        {"r": weight(1, 1), "s": np.array([side, side])},
    )
    result = SimplifyOnnx().run(model, make_context(tmp_path))
    assert result.model.size_bytes() < 10_000


def test_large_intermediate_is_not_computed(tmp_path: Path) -> None:
    nodes = [
        node("ConstantOfShape", ["s"], ["c"]),
        node("ReduceSum", ["c"], ["r"], keepdims=0),
        node("Identity", ["r"], ["i"]),
        node("Add", ["i", "x"], ["y"]),
    ]
    model = onnx_model(
        tmp_path, nodes, {"x": (["n"], "float32")}, {"y": ["n"]}, {"s": np.array([40_000, 40_000])}
    )
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    SimplifyOnnx().run(model, make_context(tmp_path))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**20  # kB: 1 of 6.4 GB


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


def test_quantized_pairs_survive(tmp_path: Path) -> None:
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["xq"]),
        node("DequantizeLinear", ["xq", "s", "z"], ["xd"]),
        node("DequantizeLinear", ["W", "s", "z"], ["wd"]),
        node("MatMul", ["xd", "wd"], ["m"]),
        node("Identity", ["m"], ["y"]),
    ]
    model = onnx_model(
        tmp_path,
        nodes,
        {"x": (["batch", 64], "float32")},
        {"y": ["batch", 64]},
        {
            "W": RNG.integers(-127, 127, (64, 64)).astype(np.int8),
            "s": np.array(0.01, F32),
            "z": np.array(0, np.int8),
        },
    )
    result = SimplifyOnnx().run(model, make_context(tmp_path))
    assert operators(result.model).count("DequantizeLinear") == 2
    assert result.model.size_bytes() <= 1.1 * model.size_bytes()


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


def test_a_failing_optimizer_leaves_folding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = onnxsim.simplify

    def simplify(model: object, perform_optimization: bool, **options: object) -> object:
        if perform_optimization:
            raise RuntimeError("nodes must be sorted")
        return original(model, perform_optimization=False, **options)

    monkeypatch.setattr(onnxsim, "simplify", simplify)
    model = foldable(tmp_path)
    result = SimplifyOnnx().run(model, make_context(tmp_path))
    assert "nodes must be sorted" in result.notes[0]
    assert "Gather" not in operators(result.model)


def test_a_failing_onnxsim_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def simplify(*args: object, **options: object) -> object:
        raise RuntimeError("no such operator")

    monkeypatch.setattr(onnxsim, "simplify", simplify)
    with pytest.raises(PassError, match="no such operator"):
        SimplifyOnnx().run(foldable(tmp_path), make_context(tmp_path))


def test_what_still_grows_is_thrown_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def simplify(model: onnx.ModelProto, **options: object) -> tuple[onnx.ModelProto, bool]:
        grown = onnx.ModelProto()
        grown.CopyFrom(model)
        big = onnx.numpy_helper.from_array(np.zeros(2_000_000, np.int8), "big")
        grown.graph.node.append(node("Constant", [], ["big"], value=big))
        return grown, True

    monkeypatch.setattr(onnxsim, "simplify", simplify)
    model = foldable(tmp_path)
    ctx = make_context(tmp_path)
    result = SimplifyOnnx().run(model, ctx)
    assert result.model is model
    assert "kept the original" in result.notes[-1]
    assert "simplify grew the model x" in result.notes[-1]
    assert not list(ctx.work.iterdir())
