"""onnxsim: nothing large is computed or stored, and what fails is said."""

from __future__ import annotations

import resource
from pathlib import Path

import numpy as np
import onnxsim
import pytest
from megacompile_passes.graph.simplify.onnx import SimplifyOnnx

from megacompile.errors import PassError
from tests.passes.context import make_context
from tests.passes.graph.simplify.onnx_nodes import foldable, node, weight
from tests.passes.onnx_models import onnx_model, operators


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
