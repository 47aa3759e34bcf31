"""`simplify` on TorchScript: frozen, without dead code, the source as it was."""

from __future__ import annotations

from pathlib import Path

import pytest
from megacompile_passes.convert.script import Script
from megacompile_passes.graph.simplify.scripted import SimplifyScripted

from megacompile.models.forms import Scripted
from tests.passes import models
from tests.passes.context import make_context
from tests.passes.graph.simplify.test_exported import Redundant
from tests.passes.models import dim, make_eager, tensor


@pytest.mark.parametrize("frozen", [True, False])
def test_frozen_without_dead_code(frozen: bool, tmp_path: Path) -> None:
    model = make_eager(Redundant(), {"x": tensor("batch", 8)}, {"batch": dim(1, 3, 8)})
    context = make_context(tmp_path, model.signature)
    scripted = Script(freeze=frozen).run(model, context).model
    before = (str(scripted.module.graph), scripted.parameters())
    result = SimplifyScripted().run(scripted, context)
    assert result.sites.changed > 0
    assert "dropout" not in result.model.module.code
    assert "tanh" not in result.model.module.code
    assert result.model.parameters() == 72
    assert (str(scripted.module.graph), scripted.parameters()) == before
    models.assert_same(result.model, model)
    folder = tmp_path / "saved"
    folder.mkdir()
    result.model.save(folder)
    models.assert_same(Scripted.load(folder, model.signature), model)


def test_nothing_to_do_says_so(tmp_path: Path) -> None:
    model = models.linear()
    context = make_context(tmp_path, model.signature)
    once = SimplifyScripted().run(Script().run(model, context).model, context).model
    result = SimplifyScripted().run(once, context)
    assert result.model is once
    assert result.notes == ["nothing to simplify"]


def test_ties_are_kept(tmp_path: Path) -> None:
    model = models.tied()
    context = make_context(tmp_path, model.signature)
    result = SimplifyScripted().run(Script(freeze=False).run(model, context).model, context)
    assert result.model.parameters() == 64_000
    models.assert_same(result.model, model)
