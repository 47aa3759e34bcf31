"""Two reports compared: what is significantly better or worse, and what else changed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from megacompile.report import format as fmt
from megacompile.report import summary
from megacompile.report.diff_model import Difference, EngineDiff, ReportDiff, Side
from megacompile.report.engine_comparison import Engine, Rules, engine_diff
from megacompile.report.model import Report

LATENCY_NOISE = 0.05


def diff_reports(a: Report, b: Report) -> ReportDiff:
    """`a` is the earlier report, `b` the later one."""
    here, there = a.environment, b.environment
    same = here.machine == there.machine and here.threads == there.threads
    old, new = summary.reference(a), summary.reference(b)
    rules = Rules(
        latency_noise=_latency_noise(a, b) if same else None,
        speedups=bool(old and new and old.name == new.name),
    )
    first, second = summary.winner(a), summary.winner(b)
    return ReportDiff(
        name_before=a.name,
        name_after=b.name,
        created_before=a.created,
        created_after=b.created,
        verdict_before=a.verdict,
        verdict_after=b.verdict,
        winner_before=a.winner,
        winner_after=b.winner,
        machine_before=_machine(a),
        machine_after=_machine(b),
        same_machine=same,
        reference_before=old and old.name,
        reference_after=new and new.name,
        withheld=_withheld(a, b),
        winner=engine_diff(first, second, rules) if first and second else None,
        candidates=_matched(a.candidates, b.candidates, rules),
        baselines=_matched(a.baselines, b.baselines, rules),
        spec=differences(flattened(a.spec), flattened(b.spec)),
        versions=differences(_versions(a), _versions(b)),
    )


def flattened(value: Any, path: str = "") -> dict[str, str]:
    """Nested data as dotted paths: `variants.int8.passes[0].quantize.method`."""
    if isinstance(value, Mapping) and value:
        found: dict[str, str] = {}
        for key, one in value.items():
            found |= flattened(one, f"{path}.{key}" if path else str(key))
        return found
    if isinstance(value, list) and value:
        found = {}
        for at, one in enumerate(value):
            found |= flattened(one, f"{path}[{at}]")
        return found
    return {path: "null" if value is None else str(value)} if path else {}


def differences(before: Mapping[str, str], after: Mapping[str, str]) -> list[Difference]:
    """The paths whose values differ, in order of appearance."""
    paths = dict.fromkeys([*before, *after])
    return [
        Difference(path=path, before=before.get(path), after=after.get(path))
        for path in paths
        if before.get(path) != after.get(path)
    ]


def _versions(report: Report) -> dict[str, str]:
    here = report.environment
    return {"python": here.python, "system": here.system, **here.versions}


def _withheld(a: Report, b: Report) -> list[Side]:
    sides: list[Side] = ["before"] if summary.withheld(a) else []
    return [*sides, "after"] if summary.withheld(b) else sides


def _machine(report: Report) -> str:
    here = report.environment
    return f"{here.machine}, {fmt.plural(here.threads, 'thread')}"


def _latency_noise(a: Report, b: Report) -> float:
    """What a latency may drift between two builds: 5 %, or more when an A/A check saw more."""
    checks = [report.aa_check for report in (a, b) if report.aa_check]
    seen = [abs(end - 1) for check in checks for end in (check.low, check.high)]
    return max([LATENCY_NOISE, *(one for one in seen if math.isfinite(one))])


def _matched(before: Sequence[Engine], after: Sequence[Engine], rules: Rules) -> list[EngineDiff]:
    """The engines of both sides, matched by name."""
    old, new = ({one.name: one for one in side} for side in (before, after))
    found = []
    for name in dict.fromkeys([*old, *new]):
        one, other = old.get(name), new.get(name)
        if one is not None and other is not None:
            found.append(engine_diff(one, other, rules))
        elif one is not None:
            found.append(EngineDiff(name=name, presence="only before", status_before=one.status))
        elif other is not None:
            found.append(EngineDiff(name=name, presence="only after", status_after=other.status))
    return found
