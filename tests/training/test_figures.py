"""Figures of a step: what lasts, the peak, and the largest batch within a limit."""

from __future__ import annotations

import pytest

from megacompile.training.batches import sized
from megacompile.training.figures import largest_batch, memory_figures, state_bytes
from megacompile.training.recipe import Checkpoint, Recipe
from tests.training.toy import batches_of, make_form


def test_state_of_adam_is_twice_the_parameters() -> None:
    form = make_form()
    step = form.step()
    batch = next(batches_of(form))
    step.step(batch)
    step.gather(batch)
    found = state_bytes(step)
    assert found["gradients"] == found["parameters"]
    assert found["optimizer"] == pytest.approx(2 * found["parameters"], rel=0.01)


def test_figures_of_a_step() -> None:
    form = make_form()
    step = form.step()
    batch = next(batches_of(form))
    step.step(batch)
    found = memory_figures(step, batch)
    lasting = sum(found["state_mb"][part] for part in ("parameters", "optimizer"))
    assert found["peak_memory_mb"] > lasting + found["state_mb"]["gradients"]
    assert found["saved_mb"]["blocks.0"] > 0
    assert found["saved_mb"]["blocks.0"] == pytest.approx(found["saved_mb"]["blocks.5"], rel=0.01)
    assert max(value for _, value in found["timeline"]) <= found["peak_memory_mb"] + 1e-6


def test_the_largest_batch_is_found_by_trying() -> None:
    form = make_form(batch_size=8, accumulate=1)
    stream = form.origin.train, form.origin.base, form.origin.seed
    tried: list[str] = []
    step = form.step()
    batch = next(batches_of(form))
    step.step(batch)
    limit = memory_figures(step, batch)["peak_memory_mb"] * 1e6 * 2
    plain = largest_batch(step, sized(*stream), limit, 8, tried.append)
    assert tried[0].startswith("8 samples")
    recipe = Recipe(checkpoints=tuple(Checkpoint(module=f"blocks.{n}") for n in range(6)))
    fewer = form.step(recipe)
    fewer.step(batch)
    assert largest_batch(fewer, sized(*stream), limit, 8) > 1.3 * plain
    assert largest_batch(step, sized(*stream), 1000.0, 8) == 0


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_step_fits_in_its_own_memory(accumulate: int) -> None:
    """Few samples and many parameters: gradients must not be counted before they come."""
    form = make_form(batch_size=2 * accumulate, accumulate=accumulate)
    step, batch = form.step(), next(batches_of(form))
    step.step(batch)
    limit = memory_figures(step, batch)["peak_memory_mb"] * 1e6
    stream = sized(form.origin.train, form.origin.base, form.origin.seed)
    assert largest_batch(step, stream, limit * 1.001, 2) >= 2
