"""`checkpoint`: what is chosen, and that nothing but memory changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from megacompile_passes.training.checkpoint.blocks import CheckpointBlocks
from pydantic import ValidationError

from megacompile.errors import PassError
from megacompile.measure.training.comparison import compare_traces, trace
from megacompile.training.recipe import Compression, Recipe
from tests.passes.models import Untouched
from tests.passes.training.checkpoint.steps import BLOCKS, chosen, run, share
from tests.training.toy import batches_of, make_form


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"every": 1}, BLOCKS),
        ({"every": 2}, BLOCKS[::2]),
        ({"every": 4}, ["blocks.0", "blocks.4"]),
        ({"blocks": "blocks.*"}, BLOCKS),
        ({"blocks": ["blocks.[12]", "blocks.5"]}, ["blocks.1", "blocks.2", "blocks.5"]),
    ],
)
def test_named_and_every(tmp_path: Path, options: Any, expected: list[str]) -> None:
    form = make_form()
    untouched = Untouched(form.module)
    result = run(tmp_path, form, **options)
    assert chosen(result) == expected
    assert result.sites.changed == len(expected)
    assert [c.block for c in result.model.recipe.costs if c.chosen] == expected
    assert all(c.saved_bytes > 0 and c.recompute_ms > 0 for c in result.model.recipe.costs)
    assert form.recipe.checkpoints == ()
    untouched.check()


@pytest.mark.parametrize("policy", ["all", "keep-matmul"])
def test_training_is_the_same(tmp_path: Path, policy: Any) -> None:
    """Dropout is on: a mask drawn anew in the recomputation would change the gradients."""
    form = make_form()
    result = run(tmp_path, form, every=1, policy=policy)
    plain = trace(form.step(), batches_of(form), 5)
    found = compare_traces(plain, trace(result.model.step(), batches_of(form), 5))
    assert found.relative_max < 1e-5
    assert share(form, result.model.recipe) < 0.9


def test_keeping_matrix_products_needs_more_memory_than_keeping_nothing(tmp_path: Path) -> None:
    form = make_form(batch_size=64)
    all_again, some = (
        share(form, run(tmp_path, form, every=1, policy=policy).model.recipe)
        for policy in ("all", "keep-matmul")
    )
    assert all_again < some < 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "is needed"),
        ({"every": 2, "memory": 0.5}, "every and memory"),
        ({"memory": 1.5}, "less than 1"),
        ({"memory": 0.5, "policy": "none"}, "policy"),
    ],
)
def test_options_that_do_not_fit(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        CheckpointBlocks(**options)


def test_a_selector_without_a_match(tmp_path: Path) -> None:
    with pytest.raises(PassError, match="matches nothing") as caught:
        run(tmp_path, make_form(), blocks="block.*")
    assert "blocks" in str(caught.value.remedy)


def test_after_compression_nothing_can_be_measured(tmp_path: Path) -> None:
    form = make_form(recipe=Recipe(compression=Compression()))
    with pytest.raises(PassError, match="comes before"):
        run(tmp_path, form, every=1)
