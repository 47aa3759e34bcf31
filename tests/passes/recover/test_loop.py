"""A run of `recover`: the best weights remain, and an interrupted run goes on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from megacompile_passes.recover.eager import RecoverEager

from megacompile.models.forms import Eager
from megacompile.models.tensors import Feeds
from megacompile.plan.passes import Metrics, PassContext
from tests.passes.recover.worlds import probe, recover, spoiled


def test_the_best_weights_by_the_metric_are_kept_and_patience_ends_the_run(
    world: tuple[Eager, PassContext],
) -> None:
    original, context = world
    values = iter([0.1, 0.1, 0.5, 0.9, 0.3, 0.2, 0.2, 0.4])
    seen: list[Feeds] = []

    def evaluate(run: Any) -> Metrics:
        seen.append(run(probe(original)))
        return {"score": {"value": next(values), "higher_is_better": True}}

    options = recover(distill={}, monitor="score", check_every=5, patience=2, steps=100)
    result = RecoverEager(**options).run(spoiled(original), replace(context, evaluate=evaluate))
    record = result.recovery
    assert record is not None
    assert [look.value for look in record.looks] == [0.1, 0.5, 0.9, 0.3, 0.2]
    assert (record.best_step, record.steps, record.planned_steps) == (10, 20, 100)
    kept = result.model.run(probe(original))
    np.testing.assert_array_equal(kept["logits"], seen[3]["logits"])
    assert any("stopped after 20 of 100" in note for note in result.notes)
    assert any("upper end" in note for note in result.notes)


def test_an_interrupted_run_goes_on_and_ends_as_if_it_had_not_been(
    world: tuple[Eager, PassContext], tmp_path: Path
) -> None:
    original, context = world
    given = recover(
        distill={},
        steps=30,
        sampling="loss-weighted",
        checkpoint_seconds=0,
        masking={"input": "x", "share": 0.2},
        accumulate=2,
    )
    options = RecoverEager(**given)
    whole = options.run(spoiled(original), context).model.run(probe(original))

    def stop(done: int, total: int, note: str) -> None:
        if done == 17:
            raise KeyboardInterrupt

    resume = tmp_path / "runs"
    with pytest.raises(KeyboardInterrupt):
        options.run(spoiled(original), replace(context, resume=resume, advance=stop))
    # The last checkpoint is damaged: the one before it is used, and named.
    names = sorted(resume.iterdir(), key=lambda p: int(p.name.split("-")[1]))
    assert [p.name for p in names] == ["checkpoint-15", "checkpoint-16"]
    weights = names[1] / "tensors.safetensors"
    weights.write_bytes(weights.read_bytes()[:-7])
    again = options.run(spoiled(original), replace(context, resume=resume))
    answers = again.model.run(probe(original))
    np.testing.assert_allclose(answers["logits"], whole["logits"], rtol=1e-5, atol=1e-6)
    (note,) = [note for note in again.notes if "continued after step 15" in note]
    assert "checkpoint-16" in note
    assert again.recovery is not None
    assert len(again.recovery.losses) == 30
