"""`plan` says what is stored, without loading the model."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from megacompile.builder.inspection import original_key
from megacompile.builder.keys import keys_of
from megacompile.builder.worker import serve_inspection
from megacompile.commands.plan_view import _Described, render_plan, stored_steps
from megacompile.measure.original import read_record
from megacompile.plan.backends import Machine
from megacompile.plan.planner import make_plan
from megacompile.spec import load_spec_data
from megacompile.system.cache import Cache


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


def test_stored_steps(cache: Cache, tmp_path: Path) -> None:
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, 3]) for n in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", values[:1], values[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, tmp_path / "m.onnx")
    data = {
        "name": "toy",
        "model": {"onnx": "m.onnx"},
        "inputs": {"x": {"shape": [2, 3]}},
        "passes": ["simplify"],
        "backends": ["onnxruntime"],
    }
    loaded = load_spec_data(data, tmp_path)
    plan = make_plan(loaded, lambda _: Machine("cpu", 2, ()))
    assert stored_steps(plan, tmp_path, cache) == {}

    spec = plan.spec
    written = spec.model_dump(mode="json", by_alias=True, exclude_unset=True)
    key = original_key(_Described(spec, loaded.base, written))
    request = {"spec": written, "base": str(loaded.base), "key": key, "cache": str(cache.root)}
    serve_inspection(iter([request]), lambda event: None)
    name = plan.candidates[0].name
    assert stored_steps(plan, loaded.base, cache) == {name: [False, False]}

    entry = cache.get(key)
    assert entry is not None
    first = keys_of(plan.candidates[0], spec, read_record(entry.folder), plan.target, loaded.base)[
        0
    ]
    cache.put(first, {}, lambda folder: None)
    stored = stored_steps(plan, loaded.base, cache)
    assert stored == {name: [True, False]}
    assert "simplify -> Onnx  EXACT  (stored)" in render_plan(plan, stored)
