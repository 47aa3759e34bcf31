"""A wrong step is caught, and its worst parameter is named."""

from __future__ import annotations

import itertools

import pytest
import torch

from megacompile.errors import ModelError
from megacompile.measure.training.comparison import (
    Trace,
    broken_step,
    check_finite,
    compare_traces,
    trace,
)
from megacompile.plan.passes import Effect
from megacompile.training.recipe import Checkpoint, Recipe
from tests.training.toy import batches_of, make_form


@pytest.fixture(scope="module")
def plain() -> Trace:
    form = make_form()
    return trace(form.step(), batches_of(form), 3)


def other(recipe: Recipe) -> Trace:
    form = make_form()
    return trace(form.step(recipe), batches_of(form), 3)


def test_the_same_step_is_the_same(plain: Trace) -> None:
    found = compare_traces(plain, other(Recipe(checkpoints=(Checkpoint(module="blocks.0"),))))
    assert found.cosine_min == pytest.approx(1, abs=1e-12)
    assert found.relative_max == 0
    assert found.after_one == 0
    assert found.after_many == 0
    assert found.many == 3
    assert found.parameters == len(plain.gradients)
    assert broken_step(found, Effect.EXACT, "float32") is None


def test_bfloat16_is_numeric_and_not_exact(plain: Trace) -> None:
    found = compare_traces(plain, other(Recipe(autocast="bfloat16")))
    assert broken_step(found, Effect.NUMERIC, "bfloat16") is None
    assert broken_step(found, Effect.EXACT, "float32") is not None


def changed(plain: Trace, name: str, value: torch.Tensor) -> Trace:
    return Trace(plain.losses, {**plain.gradients, name: value}, plain.start, plain.one, plain.many)


def test_the_guilty_parameter_is_named(plain: Trace) -> None:
    name = "blocks.3.narrow.weight"
    wrong = changed(plain, name, -plain.gradients[name])
    found = compare_traces(plain, wrong)
    assert found.worst == found.relative_worst == name
    assert found.cosine_min == pytest.approx(-1)
    for effect in (Effect.EXACT, Effect.NUMERIC):
        assert name in str(broken_step(found, effect, "bfloat16"))


def test_a_missing_or_infinite_gradient_breaks(plain: Trace) -> None:
    name = "head.weight"
    fewer = {n: g for n, g in plain.gradients.items() if n != name}
    missing = compare_traces(plain, Trace(plain.losses, fewer, plain.start, plain.one, plain.many))
    assert broken_step(missing, Effect.EXACT, "float32")
    infinite = torch.full_like(plain.gradients[name], float("inf"))
    found = compare_traces(plain, changed(plain, name, infinite))
    assert name in str(broken_step(found, Effect.LOSSY, "float32"))


def test_parameters_that_drift_later_break(plain: Trace) -> None:
    many = {n: v + 0.5 * (v - plain.start[n]) for n, v in plain.many.items()}
    drifted = Trace(plain.losses, plain.gradients, plain.start, plain.one, many)
    found = compare_traces(plain, drifted)
    assert found.after_many == pytest.approx(0.5, rel=1e-4)
    assert "after 3 steps" in str(broken_step(found, Effect.EXACT, "float32"))


def test_rounding_noise_is_left_out_and_said() -> None:
    """A key's bias has no gradient in theory: softmax cancels it."""

    class Attention(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.query, self.key = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
            self.head = torch.nn.Linear(64, 10)

        def forward(self, image: torch.Tensor) -> torch.Tensor:
            weights = torch.softmax(self.query(image) @ self.key(image).transpose(1, 2), -1)
            return self.head((weights @ image).flatten(1))

    form = make_form(Attention())
    batches = list(itertools.islice(batches_of(form), 1))
    first = trace(form.step(), batches, 1)
    found = compare_traces(first, first)
    assert "key.bias" in str(found.note)


def test_a_step_that_diverges_later_breaks_every_promise(plain: Trace) -> None:
    name = "blocks.3.narrow.weight"
    many = {**plain.many, name: plain.many[name] * float("nan")}
    later = Trace(plain.losses, plain.gradients, plain.start, plain.one, many)
    found = compare_traces(plain, later)
    for effect in Effect:
        assert "not finite after 3 steps" in str(broken_step(found, effect, "bfloat16"))


def test_a_plain_step_that_diverges_is_no_measure(plain: Trace) -> None:
    check_finite(plain)
    with pytest.raises(ModelError, match="diverges") as caught:
        check_finite(Trace([1.0, float("nan")], plain.gradients, plain.start, plain.one))
    assert "at step 2" in str(caught.value)
