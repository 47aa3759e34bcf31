"""`recover` on a module: trained until it answers as the original again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from megacompile_passes.recover.eager import RecoverEager
from megacompile_passes.structure.share_parameters.eager import ShareParametersEager

from megacompile.errors import DataError, ModelError, PassError
from megacompile.models.forms import Eager
from megacompile.plan.passes import Metrics, PassContext
from tests.passes.models import Untouched, cosine
from tests.passes.recover.worlds import Net, batches, probe, recover, spoiled


@pytest.mark.parametrize(
    "distill",
    [
        {},
        {"loss": "cosine"},
        {"loss": "kl", "temperature": 2.0},
        {"hidden": ["blocks.*"], "weight": 0.5},
        {"weight": 0, "hidden": ["norm", "head"]},
    ],
    ids=["mse", "cosine", "kl", "hidden", "hidden-alone"],
)
def test_distillation_brings_the_answers_back(
    world: tuple[Eager, PassContext], distill: dict[str, Any]
) -> None:
    original, context = world
    model = spoiled(original)
    untouched = [Untouched(model.module), Untouched(original.module)]
    result = RecoverEager(**recover(distill=distill)).run(model, context)
    for one in untouched:
        one.check()
    feeds = probe(original)
    before, after = (1 - cosine(m.run(feeds), original.run(feeds)) for m in (model, result.model))
    assert after < before / 2
    record = result.recovery
    assert record is not None
    best = min(record.looks, key=lambda look: look.value)
    assert best.step == record.best_step > 0
    assert len(record.losses) == record.steps == 60
    assert result.sites.changed == len(list(Net().parameters()))
    assert not any(one.training for one in result.model.module.modules())
    assert all(p.requires_grad and p.grad is None for p in result.model.module.parameters())


def test_shared_parameters_stay_shared(world: tuple[Eager, PassContext]) -> None:
    original, context = world
    share = ShareParametersEager(mode="group", groups=[["blocks.0", "blocks.1"]])
    shared = share.run(original, context).model
    found = RecoverEager(**recover(distill={"hidden": ["blocks.1"]})).run(shared, context).model
    assert found.parameters() == shared.parameters() < original.parameters()
    assert found.module.blocks[0][0].weight is found.module.blocks[1][0].weight  # type: ignore
    feeds = probe(original)
    before, after = (cosine(m.run(feeds), original.run(feeds)) for m in (shared, found))
    assert after > before


@pytest.mark.parametrize(
    "task",
    [{"labels": "label", "label_smoothing": 0.1}, {"loss": "data.py:loss"}],
    ids=["labels", "own-loss"],
)
def test_the_task_itself_is_learned(world: tuple[Eager, PassContext], task: dict[str, Any]) -> None:
    original, context = world

    def accuracy(run: Any) -> Metrics:
        (batch,) = batches()
        right = run({"x": batch["x"]})["logits"].argmax(1) == batch["label"]
        return {"accuracy": {"value": float(right.mean()), "higher_is_better": True}}

    context = replace(context, evaluate=accuracy)
    result = RecoverEager(**recover(task=task, steps=80)).run(original, context)
    record = result.recovery
    assert record is not None
    before, after = record.metric_before["accuracy"].value, record.metric_after["accuracy"].value
    assert before < 0.4 < 0.8 < after
    assert accuracy(result.model.run)["accuracy"]["value"] == after


def test_batch_statistics_move_only_when_asked(world: tuple[Eager, PassContext]) -> None:
    original, context = world
    model = spoiled(original)
    means = []
    for choice in ("frozen", "train"):
        options = recover(distill={}, batchnorm=choice, steps=20)
        found = RecoverEager(**options).run(model, context).model
        means.append(found.module.norm.running_mean)  # type: ignore[union-attr]
    start = model.module.norm.running_mean  # type: ignore[union-attr]
    assert torch.equal(means[0], start)  # type: ignore[arg-type]
    assert not torch.equal(means[1], start)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"distill": {"hidden": ["block.*"]}}, "matches nothing"),
        ({"distill": {"mask": "gates"}}, "'gates', which no batch has"),
        ({"distill": {"outputs": ["logit"]}}, "matches nothing"),
        ({"task": {"labels": "labels"}}, "'labels', which no batch has"),
        ({"task": {"labels": "x"}}, "don't fit the logits"),
        ({"task": {"labels": "label", "output": "logit"}}, "which is no output"),
        ({"task": {"loss": "data.py:broken"}}, "no scalar tensor"),
        ({"distill": {}, "freeze": ["*"]}, "no parameter to train"),
        ({"distill": {}, "masking": {"input": "z", "share": 0.1}}, "'z', which no batch has"),
        ({"distill": {}, "batches": "data.py:other_names"}, "no entry 'x'"),
        ({"distill": {}, "batches": "data.py:one"}, "none can be held out"),
        ({"distill": {}, "batches": "data.py:infinite"}, "the loss is nan"),
        (
            {"distill": {}, "clip_activations": {"modules": ["bloks"], "limit": 1}},
            "matches nothing",
        ),
        ({"distill": {}, "optimizer": {"sgd": {"lr": 1e-12}}}, "made nothing better"),
    ],
)
def test_what_does_not_fit_is_named(
    world: tuple[Eager, PassContext], options: dict[str, Any], words: str
) -> None:
    original, context = world
    model = spoiled(original)
    untouched = Untouched(model.module)
    with pytest.raises((PassError, DataError, ModelError), match=words):
        RecoverEager(**recover(**{"steps": 3, **options})).run(model, context)
    untouched.check()


def test_a_model_that_lost_nothing_is_refused(world: tuple[Eager, PassContext]) -> None:
    original, context = world
    with pytest.raises(PassError, match="nothing to bring back"):
        RecoverEager(**recover(distill={})).run(original.copy(), context)
