"""A pass's training step against the plain one, and what happens when it isn't the same."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from megacompile.errors import VerificationError
from megacompile.measure.instruments.steps import StepVerification
from megacompile.plan import Effect
from megacompile.training.form import Training
from megacompile.training.recipe import Checkpoint, Recipe
from megacompile.training.step import TrainingStep
from tests.measure.instruments.watched import Told, step_run, watch
from tests.training.toy import make_form


def test_a_right_step_is_recorded_and_other_forms_are_not() -> None:
    form = make_form(recipe=Recipe(checkpoints=(Checkpoint(module="blocks.0"),)))
    verification = StepVerification(form.origin)
    run = step_run(form)
    watch(verification, run)
    assert run.record.training is not None
    assert run.record.training.relative_max == 0
    assert run.record.training.many is None, "one step was taken"
    other = step_run(Told({}))
    watch(verification, other)
    assert other.record.training is None


def test_a_step_that_is_not_the_plain_one_breaks_its_promise() -> None:
    form = make_form(recipe=Recipe(autocast="bfloat16"))
    verification = StepVerification(form.origin)
    with pytest.raises(VerificationError) as caught:
        verification.check(form, 1, Effect.EXACT, "float32", "mixed")
    assert "'mixed' broke its promise about the training step" in str(caught.value)
    assert "the plain step's numbers up to float rounding" in str(caught.value)
    assert verification.check(form, 1, Effect.NUMERIC, "bfloat16", "mixed").cosine_min < 1


def test_the_plain_step_is_traced_once_for_the_same_weights(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain_steps: list[Recipe] = []
    whole = Training.step

    def counted(form: Training, *args: object, **more: object) -> TrainingStep:
        if not form.recipe.checkpoints:
            plain_steps.append(form.recipe)
        return whole(form, *args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(Training, "step", counted)
    form = make_form(recipe=Recipe(checkpoints=(Checkpoint(module="blocks.0"),)))
    verification = StepVerification(form.origin)
    for _ in range(2):
        verification.measure(form, 1)
    assert len(plain_steps) == 1
    with torch.no_grad():
        next(one for one in form.module.modules() if isinstance(one, nn.Linear)).weight.add_(0.1)
    verification.measure(form, 1)
    assert len(plain_steps) == 2
