"""The learning-rate range test of `recover`."""

from __future__ import annotations

from megacompile_passes.recover.eager import RecoverEager

from megacompile.models.forms import Eager
from megacompile.plan.passes import PassContext
from tests.passes.recover.worlds import recover, spoiled


def test_the_range_test_finds_a_rate_and_puts_everything_back(
    world: tuple[Eager, PassContext],
) -> None:
    original, context = world
    options = recover(distill={}, lr_range_test=60, steps=40)
    result = RecoverEager(**options).run(spoiled(original), context)
    assert result.recovery is not None
    assert 1e-5 < result.recovery.learning_rate < 0.2
    assert any("range test" in note for note in result.notes)
