"""A compiled step computes the same."""

from __future__ import annotations

import pytest
import torch

from megacompile.training.recipe import Checkpoint, Compile, Recipe
from tests.training.toy import assert_close, batches_of, gradients_of, make_form


@pytest.mark.slow
@pytest.mark.parametrize(
    "choice", [Compile(what="step"), Compile(what="blocks", modules=("blocks.0", "blocks.1"))]
)
def test_a_compiled_step_computes_the_same(choice: Compile) -> None:
    form = make_form(dropout=False)
    batch = next(batches_of(form))
    torch._dynamo.reset()
    recipe = Recipe(compile=choice, checkpoints=(Checkpoint(module="blocks.0"),))
    assert_close(
        gradients_of(form.step(), batch),
        gradients_of(form.step(recipe), batch),
        rtol=1e-3,
        atol=1e-6,
    )
