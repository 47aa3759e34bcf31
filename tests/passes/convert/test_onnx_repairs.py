"""What the exporter leaves to repair: weights once, turned as they are read, names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import torch
from megacompile_passes.convert.export import Export
from megacompile_passes.convert.to_onnx import ToOnnx
from torch import nn

from megacompile.models import onnxfile
from tests.passes import models
from tests.passes.context import make_context
from tests.passes.convert.conversions import to_onnx
from tests.passes.models import dim, make_eager, tensor


def test_tied_weight_is_stored_once(tmp_path: Path) -> None:
    model = models.tied()
    made = to_onnx(model, tmp_path)
    large = [
        t
        for t in onnxfile.weights(onnxfile.read(made.path)).values()
        if t.dims and onnx.numpy_helper.to_array(t).size == 64_000
    ]
    assert len(large) == 1
    assert made.parameters() == 64_000
    assert made.size_bytes() <= 1.1 * 256_000 + 50_000
    models.assert_same(made, model)


def test_a_block_used_twelve_times_is_stored_once(tmp_path: Path) -> None:
    model = models.shared()
    untouched = models.Untouched(model.module)
    made = to_onnx(model, tmp_path)
    assert made.size_bytes() < 1.2 * 526_848
    models.assert_same(made, model, atol=1e-4, rtol=1e-3)
    untouched.check()


def test_sizes_carry_the_names_of_the_spec(tmp_path: Path) -> None:
    graph = onnxfile.read(to_onnx(models.tied(), tmp_path).path).graph
    shapes = {
        v.name: [d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim]
        for v in [*graph.input, *graph.output]
    }
    assert shapes == {"ids": ["batch", "seq"], "output": ["batch", "seq", 1000]}


class Outputs(nn.Module):
    """C49: an input and one tensor twice among the outputs, an unused input, None."""

    def forward(self, x: torch.Tensor, unused: torch.Tensor) -> Any:
        y = x + 1
        return {"b": y, "a": x * 2, "n": None, "t": (x, x), "again": y}


def test_names_of_repeated_outputs_and_unused_inputs(tmp_path: Path) -> None:
    model = make_eager(
        Outputs(), {"x": tensor("batch", 3), "unused": tensor("batch", 2)}, {"batch": dim(1, 2, 4)}
    )
    made = to_onnx(model, tmp_path)
    graph = onnxfile.read(made.path).graph
    assert [v.name for v in graph.input] == ["x", "unused"]
    assert [v.name for v in graph.output] == ["b", "a", "t.0", "t.1", "again"]
    models.assert_same(made, model)


class Table(nn.Module):
    """Its first operator is called `embedding` by torch."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 4)
        self.last = nn.Linear(4, 3)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.last(self.table(ids))


def test_an_output_may_bear_the_name_of_an_operator(tmp_path: Path) -> None:
    ids = tensor("batch", 5, dtype="int64", range=(0, 9))
    model = make_eager(Table(), {"ids": ids}, {"batch": dim(1, 2, 8)}, ["embedding"])
    models.assert_same(to_onnx(model, tmp_path), model)


def test_a_shared_weight_is_stored_the_way_its_users_read_it(tmp_path: Path) -> None:
    """Behind a Transpose no quantizer finds it; with an embedding beside, it stays as it was."""
    for model, turned in ((models.shared(), 0), (models.tied(), 1)):
        context = make_context(tmp_path, model.signature)
        exported = Export().run(model, context).model
        made = ToOnnx().run(exported, make_context(tmp_path, model.signature)).model
        graph = onnx.load(str(made.path)).graph
        assert sum(node.op_type == "Transpose" for node in graph.node) == turned
        # The constants of an activation count in ONNX: a few numbers, no second weight.
        assert 0 <= made.parameters() - model.parameters() < 10
        models.assert_same(made, model)
