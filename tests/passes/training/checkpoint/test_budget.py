"""The cheapest set of blocks within a budget: it fits as measured and as predicted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from megacompile.errors import PassError
from megacompile.training.costs import measure
from megacompile.training.recipe import Checkpoint, Recipe
from megacompile.training.solver import Way, peak_of
from tests.passes.training.checkpoint.steps import BLOCKS, chosen, run, share
from tests.training.toy import batches_of, make_form


@pytest.mark.parametrize("budget", [0.8, 0.6])
def test_a_budget_is_met_as_measured_and_as_predicted(tmp_path: Path, budget: float) -> None:
    form = make_form(batch_size=128)
    result = run(tmp_path, form, memory=budget)
    recipe = result.model.recipe
    measured = share(form, recipe)
    assert measured <= budget
    problem = measure(form.step(), BLOCKS, next(batches_of(form)))
    plain = peak_of(problem, ())
    ways = [Way(c.module, c.policy == "keep-matmul") for c in recipe.checkpoints]
    assert peak_of(problem, ways) / plain == pytest.approx(measured, rel=0.1)
    # One block fewer would not fit: the cheapest set is no larger than it must be.
    fewer = recipe.edited(checkpoints=recipe.checkpoints[1:])
    assert share(form, fewer) > budget
    assert {c.block for c in recipe.costs} >= set(BLOCKS)
    assert {c.block for c in recipe.costs if c.chosen} == set(chosen(result))
    assert all("cheapest" in str(c.why) for c in recipe.costs if c.chosen)
    assert "predicted" in result.notes[0]


@pytest.mark.parametrize("policy", ["all", "keep-matmul"])
def test_a_policy_limits_what_a_budget_chooses_from(tmp_path: Path, policy: Any) -> None:
    form = make_form(batch_size=128)
    recipe = run(tmp_path, form, memory=0.8, policy=policy).model.recipe
    assert {one.policy for one in recipe.checkpoints} == {policy}
    assert share(form, recipe) <= 0.8


def test_a_budget_that_can_not_be_met_names_the_least(tmp_path: Path) -> None:
    form = make_form(batch_size=128)
    with pytest.raises(PassError, match="can't be met") as caught:
        run(tmp_path, form, memory=0.01)
    text = str(caught.value.got)
    least = float(text.split("memory: ")[1].split(" ")[0])
    assert 0.01 < least < 0.6
    assert "worst moment" in str(caught.value.cause)
    assert share(form, run(tmp_path, form, memory=least).model.recipe) <= least


def test_a_budget_that_is_met_already(tmp_path: Path) -> None:
    form = make_form(
        batch_size=128,
        recipe=Recipe(checkpoints=tuple(Checkpoint(module=n) for n in BLOCKS[:4])),
    )
    with pytest.raises(PassError, match="within the memory budget already"):
        run(tmp_path, form, memory=0.95)
