"""TorchScript: what is chosen is right at two shapes, and says how it was made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from megacompile_passes.convert.script import Script
from torch import nn

from megacompile.errors import ModelError
from megacompile.models.forms import Scripted
from megacompile.plan.declarations import consumes, produces
from tests.passes import models
from tests.passes.convert.conversions import Method, script
from tests.passes.models import constant, dim, make_eager, tensor


def test_forms() -> None:
    assert (consumes(Script), produces(Script)) == ("Eager", "Scripted")


@pytest.mark.parametrize("method", ["trace", "script"])
@pytest.mark.parametrize("make", [models.tied, models.conv_twice, models.conv_net])
def test_both_ways(method: Method, make: Any, tmp_path: Path) -> None:
    model = make()
    untouched = models.Untouched(model.module)
    made = script(model, tmp_path, method).model
    assert model.parameters() - 1 <= made.parameters() <= model.parameters()
    models.assert_same(made, model, rtol=1e-3)
    untouched.check()
    folder = tmp_path / "saved"
    folder.mkdir()
    made.save(folder)
    loaded = Scripted.load(folder, model.signature)
    assert loaded.parameters() == made.parameters()
    models.assert_same(loaded, model, rtol=1e-3)


@pytest.mark.parametrize("how", ["add", "assign"])
def test_a_mutated_buffer_is_refused(how: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="buffer 'n' is mutated"):
        script(models.counter(how), tmp_path)


def test_a_branch_on_values_is_kept_by_compiling(tmp_path: Path) -> None:
    model = make_eager(models.Branch(), {"x": tensor("batch", 4)}, {"batch": dim(1, 2, 4)})
    made = script(model, tmp_path).model
    for sign in (1, -1):
        feeds = {"x": sign * torch.ones(3, 4).numpy()}
        models.assert_close(made.run(feeds), model.run(feeds))


class Python(nn.Module):
    """Outside TorchScript's subset: a generator expression over modules, keyword arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.Linear(4, 4)})

    def forward(self, *, inp: torch.Tensor, flag: bool = True, **kwargs: Any) -> Any:
        out = {key: part(inp) for key, part in self.parts.items()}
        return {"b": out["b"], "a": out["a"] if flag else inp, "n": None, "same": inp}


def test_what_does_not_compile_is_traced(tmp_path: Path) -> None:
    model = make_eager(
        Python(), {"inp": tensor("batch", 4), "flag": constant(False)}, {"batch": dim(1, 2, 4)}
    )
    result = script(model, tmp_path)
    assert result.notes[0] == "traced"
    models.assert_same(result.model, model)
    with pytest.raises(ModelError, match="can't compile"):
        script(model, tmp_path, "script")


def test_recurrent_state_follows_the_batch(tmp_path: Path) -> None:
    model = make_eager(
        nn.LSTM(20, 16, 2, batch_first=True, bidirectional=True),
        {"input": tensor("batch", "seq", 20)},
        {"batch": dim(1, 1, 4), "seq": dim(2, 5, 9)},
    )
    made = script(model, tmp_path).model
    models.assert_same(made, model, sizes=[{"batch": 3, "seq": 9}, {"batch": 1, "seq": 2}])


def test_pruned_module_in_evaluation_mode(tmp_path: Path) -> None:
    model = make_eager(models.frozen_norm(), {"x": tensor("batch", 8)}, {"batch": dim(1, 3, 5)})
    untouched = models.Untouched(model.module)
    models.assert_same(script(model, tmp_path).model, model)
    untouched.check()
