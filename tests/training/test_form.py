"""The form of a model that is to be trained: it answers as the module, and makes steps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from megacompile.errors import ModelError
from megacompile.models import Eager
from megacompile.training.form import Training
from megacompile.training.recipe import Checkpoint, Recipe
from tests.training.toy import make_form

FEEDS = {"image": np.ones((2, 8, 8), np.float32)}


def test_it_answers_as_the_module_and_is_as_large() -> None:
    form = make_form()
    eager = Eager(form.module, form.signature, form.binding)
    assert np.array_equal(form.run(FEEDS)["output"], eager.run(FEEDS)["output"])
    assert (
        form.parameters()
        == eager.parameters()
        == sum(one.numel() for one in form.module.parameters())
    )
    assert form.size_bytes() == 4 * form.parameters()


def test_another_recipe_on_the_same_module() -> None:
    form = make_form()
    other = form.with_recipe(form.recipe.edited(autocast="bfloat16"))
    assert other.module is form.module
    assert (form.recipe.autocast, other.recipe.autocast) == (None, "bfloat16")


def test_a_step_is_seeded_and_on_a_copy() -> None:
    form = make_form()
    drawn = []
    for _ in range(2):
        step = form.step(Recipe(checkpoints=(Checkpoint(module="blocks.0"),)))
        drawn.append(torch.rand(3))
        assert step.module is not form.module
    assert torch.equal(drawn[0], drawn[1])


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    form = make_form(recipe=Recipe(autocast="bfloat16"))
    with torch.no_grad():
        next(form.module.parameters()).fill_(0.5)
    form.save(tmp_path)
    found = Training.load(tmp_path, form.signature)
    assert found.recipe == form.recipe
    assert found.origin == form.origin
    assert np.array_equal(found.run(FEEDS)["output"], form.run(FEEDS)["output"])


def test_a_loss_that_is_no_function_is_named() -> None:
    with pytest.raises(ModelError, match=r"loss 'math:pi' can't be called(.|\n)*got: float"):
        make_form(loss="math:pi").step()
