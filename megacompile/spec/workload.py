"""What a workload needs of a spec, and what belongs to the other one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from megacompile.errors import SpecError
from megacompile.spec.positions import Document

INFERENCE_BUDGET = ("cosine", "speedup", "latency_ms", "peak_memory_mb")
TRAINING_BUDGET = ("peak_memory", "step_time", "gradient_cosine")


def check_workload(document: Document, sections: dict[str, Any]) -> Iterator[SpecError]:
    """Problems between `workload` and the other sections; invalid ones are absent or None."""
    training = sections["workload"] == "training"
    given = document.data.get("train") is not None
    if training and not given:
        yield SpecError(
            what="workload 'training' needs to know how to train",
            where=document.where(("workload",)),
            expected="train: {loss: …, batches: …, batch_size: …}",
            got="no `train`",
            remedy="add `train`, or set workload: inference",
        )
    if given and not training:
        yield SpecError(
            what="`train` belongs to workload 'training'",
            where=document.where(("train",), key=True),
            got=f"workload '{sections['workload']}'",
            remedy="set workload: training, or remove `train`",
        )
    yield from _budget(document, sections.get("budget"), sections["workload"])
    if not training:
        return
    train = sections.get("train")
    if train is not None and train.batch_size % train.accumulate:
        yield SpecError(
            what="the batch does not divide by the accumulation",
            where=document.where(("train", "accumulate")),
            expected=f"a divisor of batch_size {train.batch_size}",
            got=str(train.accumulate),
            remedy=f"use {_near_divisor(train.batch_size, train.accumulate)}",
        )
    model = sections.get("model")
    if model is not None and model.kind != "python":
        yield SpecError(
            what="only a model built in Python can be trained",
            where=document.where(("model", model.kind), key=True),
            expected="model: {python: FILE.py:CALLABLE}",
            got=model.kind,
        )
    if document.data.get("deploy") is not None:
        yield SpecError(
            what="`deploy` serves inference engines",
            where=document.where(("deploy",), key=True),
            got="workload 'training'",
            remedy="remove it; serve the trained model with a spec of its own",
        )
    for name in ("baselines", "points"):
        if getattr(sections.get("benchmark"), name, None) is not None:
            yield SpecError(
                what=f"benchmark.{name} has no meaning in training",
                where=document.where(("benchmark", name), key=True),
                cause="the plain step is the baseline, at train.batch_size",
                remedy="remove it",
            )


def _budget(document: Document, budget: Any, workload: str) -> Iterator[SpecError]:
    foreign = INFERENCE_BUDGET if workload == "training" else TRAINING_BUDGET
    own = TRAINING_BUDGET if workload == "training" else INFERENCE_BUDGET
    for name in foreign:
        if getattr(budget, name, None) is not None:
            other = "inference" if workload == "training" else "training"
            yield SpecError(
                what=f"budget.{name} belongs to workload '{other}'",
                where=document.where(("budget", name), key=True),
                expected=", ".join(own),
                got=f"workload '{workload}'",
                remedy="remove it",
            )


def _near_divisor(size: int, wanted: int) -> int:
    divisors = [n for n in range(1, size + 1) if size % n == 0]
    return min(divisors, key=lambda n: (abs(n - wanted), n))
