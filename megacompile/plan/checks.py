"""Checks over all of a plan: the workload's backends, hooks that passes need, the target."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from megacompile.errors import PlanError
from megacompile.plan.backends import Machine
from megacompile.plan.candidates import CandidatePlan
from megacompile.plan.items import VariantItems
from megacompile.plan.passes import Pass
from megacompile.plan.routes import PlannedStep
from megacompile.spec import Spec

TRAINING = "training"  # the backend and the workload
HOOKS = {
    "calibration": (
        "data.calibration: {python: FILE.py:NAME, samples: N}",
        "add it, or choose a method that needs none (dynamic, weight-only)",
    ),
    "evaluation": ("data.evaluation: {python: FILE.py:NAME}", "add it, or leave `monitor` at loss"),
}
"""A hook of `data` -> how it is written, and what else can be done."""


def workload_problems(training: bool, variants: Sequence[VariantItems]) -> Iterator[PlanError]:
    """Backends of the other workload, each named once."""
    seen: set[str] = set()
    for variant in variants:
        for backend, where in variant.backends:
            if (backend.name == TRAINING) is not training and where not in seen:
                seen.add(where)
                workload = "training" if training else "inference"
                yield PlanError(
                    what=f"backend '{backend.name}' is not one of workload '{workload}'",
                    where=where,
                    expected=TRAINING if training else "an inference engine",
                    remedy="leave `backends` out" if training else "set workload: training",
                )


def data_problems(spec: Spec, candidates: Sequence[CandidatePlan]) -> Iterator[PlanError]:
    """Passes that need a hook the spec hasn't, each place once."""
    seen: set[tuple[str | None, str]] = set()
    for step in _steps(candidates):
        for hook in _lacking(step.pass_, spec):
            if (step.where, hook) not in seen:
                seen.add((step.where, hook))
                expected, remedy = HOOKS[hook]
                yield PlanError(
                    what=f"'{step.pass_.name}' needs {hook} data under these options",
                    where=step.where,
                    got=f"no data.{hook}",
                    expected=expected,
                    remedy=remedy,
                )


def target_problems(machine: Machine, candidates: Sequence[CandidatePlan]) -> Iterator[PlanError]:
    """What passes ask for and the target can't do, each place once."""
    seen: set[tuple[str | None, str]] = set()
    for step in _steps(candidates):
        found = step.pass_.unsupported(machine.device, machine.isa)
        if found is not None and (step.where, found.what) not in seen:
            seen.add((step.where, found.what))
            yield PlanError(**{**found.fields(), "where": step.where})


def _steps(candidates: Sequence[CandidatePlan]) -> Iterator[PlannedStep]:
    for candidate in candidates:
        yield from candidate.steps


def _lacking(pass_: Pass[Any, Any], spec: Spec) -> Iterator[str]:
    if pass_.needs_calibration() and spec.data.calibration is None:
        yield "calibration"
    if pass_.needs_evaluation() and spec.data.evaluation is None:
        yield "evaluation"
