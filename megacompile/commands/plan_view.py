"""A plan as text and as plain data."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from megacompile.builder import keys_of, original_key
from megacompile.measure import read_record
from megacompile.plan import CandidatePlan, Plan, PlannedStep, Refusal
from megacompile.spec import Spec
from megacompile.system import Cache

Refused = dict[str, list[Refusal]]


def plan_as_data(
    plan: Plan, cached: dict[str, list[bool]] | None = None, refused: Refused | None = None
) -> dict[str, Any]:
    """The plan for machines: candidates with their steps, baselines, target; `refused` are the
    operators that backends were asked about."""
    return {
        "name": plan.spec.name,
        "target": {
            "device": plan.target.device,
            "threads": plan.target.threads,
            "isa": list(plan.target.isa),
            "arch": list(plan.target.arch),
        },
        "baselines": list(plan.baselines),
        "candidates": [
            _candidate_as_data(one, (cached or {}).get(one.name), (refused or {}).get(one.name))
            for one in plan.candidates
        ],
    }


def _candidate_as_data(
    candidate: CandidatePlan, stored: list[bool] | None, refused: list[Refusal] | None
) -> dict[str, Any]:
    return {
        "name": candidate.name,
        "effect": candidate.effect.value,
        "facts": sorted(fact.value for fact in candidate.facts),
        "backend": candidate.backend.name,
        "unavailable": candidate.unavailable,
        "remedy": candidate.remedy,
        "steps": [_step_as_data(step) for step in candidate.steps],
        "stored": [False] * (len(candidate.steps) + 1) if stored is None else stored,
        "refused": None if refused is None else [asdict(one) for one in refused],
    }


def _step_as_data(step: PlannedStep) -> dict[str, Any]:
    return {
        "pass": step.pass_.name,
        "form": step.form,
        "inserted": step.inserted,
        "effect": step.pass_.promised().value,
        "options": step.pass_.model_dump(mode="json", exclude_defaults=True),
    }


@dataclass(frozen=True)
class _Described:
    """A plan's spec as the key of the original wants it (`builder.inspection.Described`)."""

    spec: Spec
    base: Path
    spec_data: dict[str, Any]


def stored_steps(plan: Plan, base: Path, cache: Cache) -> dict[str, list[bool]]:
    """For each candidate, which steps and (last) whether the engine lie in the cache.

    Empty if the original model is not known there: without its record there are no keys.
    """
    data = plan.spec.model_dump(mode="json", by_alias=True, exclude_unset=True)
    entry = cache.get(original_key(_Described(plan.spec, base, data)))
    if entry is None:
        return {}
    original = read_record(entry.folder)
    found = {}
    for candidate in plan.candidates:
        if candidate.unavailable is None:
            keys = keys_of(candidate, plan.spec, original, plan.target, base)
            found[candidate.name] = [cache.get(key) is not None for key in keys]
    return found


def render_plan(
    plan: Plan, cached: dict[str, list[bool]] | None = None, refused: Refused | None = None
) -> str:
    """The plan for people: `+` marks what the planner inserted; stored steps are named so."""
    arch = f" ({', '.join(plan.target.arch)})" if plan.target.arch else ""
    lines = [
        f"{plan.spec.name}: {len(plan.candidates)} candidates on "
        f"{plan.target.device}{arch}, {plan.target.threads} threads"
    ]
    for candidate in plan.candidates:
        lines += _candidate(candidate, (cached or {}).get(candidate.name, []))
        if refused is not None and candidate.name in refused:
            lines += _operators(candidate, refused[candidate.name])
    baselines = plan.baselines if plan.spec.train is None else ("the plain step",)
    lines.append("baselines: " + ", ".join(baselines))
    lines.append("(+ inserted by the planner)")
    return "\n".join(lines)


def _candidate(candidate: CandidatePlan, cached: list[bool]) -> list[str]:
    head = f"  {candidate.name}  [{candidate.effect.value}]"
    if candidate.unavailable:
        return [f"{head}  unavailable: {candidate.unavailable}", f"      to do: {candidate.remedy}"]
    lines = [head]
    for number, step in enumerate(candidate.steps):
        mark = "+" if step.inserted else " "
        stored = "  (stored)" if number < len(cached) and cached[number] else ""
        lines.append(f"    {mark} {_step(step)}{stored}")
    stored = "  (stored)" if len(cached) > len(candidate.steps) and cached[-1] else ""
    options = candidate.backend.model_dump(mode="json", exclude_defaults=True)
    shown = f" {json.dumps(options)}" if options else ""
    lines.append(f"      {candidate.backend.name}{shown} -> engine{stored}")
    return lines


def _operators(candidate: CandidatePlan, refused: list[Refusal]) -> list[str]:
    if not refused:
        return [f"      {candidate.backend.name} takes every operator"]
    lines = [f"      {candidate.backend.name} does not take {len(refused)} nodes:"]
    for one in refused:
        lines += [f"        {one.where}: {one.reason}", f"          to do: {one.remedy}"]
    return lines


def _step(step: PlannedStep) -> str:
    options = step.pass_.model_dump(mode="json", exclude_defaults=True)
    shown = f" {json.dumps(options)}" if options else ""
    return f"{step.pass_.name}{shown} -> {step.form}  {step.pass_.promised().value}"
