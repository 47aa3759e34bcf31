"""What the original needs in one call, whatever its form; the unchanged model as a runner."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from megacompile.measure.worker import EagerRunner, count
from megacompile.models import Eager, Form, Onnx, Scripted, Signature, load_original
from megacompile.plan import Machine
from tests.measure.toys import make_spec

MACHINE = Machine("cpu", 1, ())


def test_operations_of_a_module_and_of_a_file(tmp_path: Path) -> None:
    form = load_original(make_spec(tmp_path), tmp_path)
    expected = 2 * 5 * 4 * 3
    assert count(form, {"n": 5}, 0)["operations"] == expected
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [value("x", TensorProto.FLOAT, ["n", 4])],
        [value("y", TensorProto.FLOAT, ["n", 3])],
        [numpy_helper.from_array(np.zeros((4, 3), np.float32), "w")],
    )
    onnx.save(helper.make_model(graph), tmp_path / "m.onnx")
    found = count(Onnx(tmp_path / "m.onnx", form.signature), {"n": 5}, 0)
    assert found == {"operations": expected, "bytes_moved": 4 * (12 + 20 + 15), "note": None}


def test_what_can_not_be_counted_costs_a_figure_and_no_build(tmp_path: Path) -> None:
    signature = Signature({}, {})
    scripted = Scripted(torch.jit.script(torch.nn.Identity()), signature)
    assert count(scripted, {}, 0) == {"note": "operations are not counted in a Scripted model"}
    note = count(Onnx(tmp_path / "none.onnx", signature), {}, 0)["note"]
    assert note.startswith("operations could not be counted: ModelError")


def scripted(form: Eager) -> Scripted:
    traced = torch.jit.trace(form.flat(), torch.zeros(2, 4), check_trace=False)
    return Scripted(traced, form.signature)


@pytest.mark.parametrize("make", [lambda form: form, scripted])
def test_the_unchanged_model_is_run_as_torch_runs_it(
    make: Callable[[Eager], Form], tmp_path: Path
) -> None:
    form = load_original(make_spec(tmp_path), tmp_path)
    assert isinstance(form, Eager)
    form.signature = form.signature.with_outputs(["y", "norm"], {"dict": {}}, ["float32"] * 2)
    feeds = {"x": np.ones((2, 4), np.float32)}
    runner = EagerRunner(make(form), MACHINE, compiled=False)
    expected = form.run(feeds)
    np.testing.assert_allclose(runner.run(feeds)["y"], expected["y"], rtol=1e-6)
    answer = runner.prepare(feeds)()
    first = answer["y"] if isinstance(answer, dict) else answer[0]
    np.testing.assert_allclose(first.numpy(), expected["y"], rtol=1e-6)
