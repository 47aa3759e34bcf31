"""`compress-activations`: less memory, gradients near the exact ones, and what stays exact."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from megacompile_passes.training.compress_activations import CompressActivations

from megacompile.errors import PassError
from megacompile.measure.training.comparison import compare_traces, trace
from megacompile.training.activations import activation_memory
from megacompile.training.recipe import Checkpoint, Compression, Offload, Recipe
from tests.passes.models import Untouched
from tests.training.toy import batches_of, make_context, make_form


def run(tmp_path: Path, form: Any, **options: Any) -> Any:
    return CompressActivations(**options).run(form, make_context(tmp_path, form))


@pytest.mark.parametrize(("bits", "cosine"), [(8, 0.9999), (4, 0.99)])
def test_the_loss_is_exact_and_gradients_are_near(tmp_path: Path, bits: int, cosine: float) -> None:
    form = make_form(batch_size=64)
    untouched = Untouched(form.module)
    result = run(tmp_path, form, bits=bits)
    assert result.model.recipe.compression == Compression(bits=bits)
    plain = trace(form.step(), batches_of(form), 1)
    other = trace(result.model.step(), batches_of(form), 1)
    assert other.losses == plain.losses
    found = compare_traces(plain, other)
    assert cosine < found.cosine_min < 1
    untouched.check()


def test_memory_as_measured(tmp_path: Path) -> None:
    form = make_form(batch_size=256)
    result = run(tmp_path, form)
    batch = next(batches_of(form))
    before, after = (activation_memory(one.step(), batch).peak for one in (form, result.model))
    assert after < 0.6 * before
    assert "of what it was" in result.notes[0]
    assert result.sites.changed > 10
    assert {reason for _, reason in result.sites.skipped} >= {"a parameter or buffer"}


def test_with_checkpoints(tmp_path: Path) -> None:
    """Inside a checkpoint nothing is saved: it is computed exactly once more."""
    names = [Checkpoint(module=f"blocks.{i}") for i in range(3)]
    form = make_form(batch_size=64, recipe=Recipe(checkpoints=tuple(names)))
    result = run(tmp_path, form)
    plain = trace(form.step(Recipe()), batches_of(form), 3)
    found = compare_traces(plain, trace(result.model.step(), batches_of(form), 3))
    assert found.cosine_min > 0.9999


def test_nothing_large_enough(tmp_path: Path) -> None:
    result = run(tmp_path, make_form(), minimum_elements=10**9)
    assert result.sites.changed == 0
    assert "small" in {reason for _, reason in result.sites.skipped}


@pytest.mark.parametrize("recipe", [Recipe(compression=Compression()), Recipe(offload=Offload())])
def test_once_and_in_one_way(tmp_path: Path, recipe: Recipe) -> None:
    with pytest.raises(PassError, match="already"):
        run(tmp_path, make_form(recipe=recipe))
