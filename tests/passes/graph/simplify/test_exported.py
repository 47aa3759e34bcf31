"""`simplify` on an exported program: nothing dead is left, nothing alive is lost."""

from __future__ import annotations

from pathlib import Path

import torch
from megacompile_passes.convert.export import Export
from megacompile_passes.graph.simplify.exported import SimplifyExported
from torch import nn

from megacompile.models.forms import Eager, Exported
from megacompile.plan.passes import Result
from tests.passes import models
from tests.passes.context import make_context
from tests.passes.models import dim, make_eager, tensor


def simplify(model: Eager, tmp_path: Path) -> tuple[Exported, Result[Exported]]:
    context = make_context(tmp_path, model.signature)
    exported = Export().run(model, context).model
    return exported, SimplifyExported().run(exported, context)


class Redundant(nn.Module):
    """An unused pooler, dropout, casts and views that change nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(8, 8)
        self.pooler = nn.Linear(8, 64)
        self.dropout = nn.Dropout(0.5)
        self.register_buffer("unused", torch.zeros(10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.pooler(x).tanh()
        y = self.dropout(self.body(x).to(torch.float32))
        return y.expand(y.shape[0], 8).reshape(-1, 8) + 1


def operators(model: Exported) -> list[str]:
    return [str(n.target) for n in model.program.graph.nodes if n.op == "call_function"]


def test_dead_modules_and_what_changes_nothing(tmp_path: Path) -> None:
    model = make_eager(Redundant(), {"x": tensor("batch", 8)}, {"batch": dim(1, 3, 8)})
    exported, result = simplify(model, tmp_path)
    before = operators(exported)
    made = result.model
    kept = [name for name in operators(made) if "sym_size" not in name]
    assert kept == ["aten.linear.default", "aten.add.Tensor"]
    assert made.parameters() == 8 * 8 + 8
    assert set(made.program.state_dict) == {"module.body.weight", "module.body.bias"}
    assert result.sites.changed >= 4
    assert "dropout: 1 removed" in result.notes
    models.assert_same(made, model)
    assert operators(exported) == before
    assert len(exported.program.state_dict) == 5
    models.assert_same(exported, model)


def test_saved_loaded_and_retraced(tmp_path: Path) -> None:
    model = make_eager(Redundant(), {"x": tensor("batch", 8)}, {"batch": dim(1, 3, 8)})
    _, result = simplify(model, tmp_path)
    folder = tmp_path / "saved"
    folder.mkdir()
    result.model.save(folder)
    loaded = Exported.load(folder, model.signature)
    models.assert_same(loaded, model)
    again = SimplifyExported().run(loaded, make_context(tmp_path, model.signature))
    assert again.notes == ["nothing to simplify"]
    assert again.model is loaded
    loaded.program.run_decompositions()


class Aliases(nn.Module):
    """Outputs that must stay tensors of their own, and an update in place after a clone."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x.clone()
        y.add_(1)
        return x, y, y


def test_outputs_stay_apart_and_updates_stay_local(tmp_path: Path) -> None:
    model = make_eager(Aliases(), {"x": tensor("batch", 3)}, {"batch": dim(1, 2, 4)})
    _, result = simplify(model, tmp_path)
    models.assert_same(result.model, model)


def test_ties_are_kept(tmp_path: Path) -> None:
    model = models.tied()
    _, result = simplify(model, tmp_path)
    assert result.model.parameters() == 64_000
    models.assert_same(result.model, model)
