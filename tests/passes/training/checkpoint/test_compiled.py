"""`checkpoint` of a compiled step."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from megacompile.errors import PassError
from megacompile.training.recipe import Compile, Recipe
from tests.passes.training.checkpoint.steps import run, share
from tests.training.toy import make_form


def test_a_compiled_step_has_no_blocks(tmp_path: Path) -> None:
    form = make_form(recipe=Recipe(compile=Compile(what="step")))
    with pytest.raises(PassError, match="no blocks to checkpoint"):
        run(tmp_path, form, every=1)


@pytest.mark.slow
def test_a_compiled_step_is_given_the_partitioners_budget(tmp_path: Path) -> None:
    """The compiler keeps less than eager by itself: what it keeps then is the measure here."""
    form = make_form(batch_size=128, recipe=Recipe(compile=Compile(what="step")))
    torch.compiler.reset()
    compiled = share(form, form.recipe)
    result = run(tmp_path, form, memory=round(compiled - 0.02, 3))
    assert result.model.recipe.checkpoints == ()
    assert 0 < result.model.recipe.compile.activation_memory_budget < 1
    torch.compiler.reset()
    assert share(form, result.model.recipe) <= compiled - 0.02
    with pytest.raises(PassError, match="by the partitioner") as caught:
        run(tmp_path, form, memory=0.01)
    assert "the least is 0." in str(caught.value.got)
