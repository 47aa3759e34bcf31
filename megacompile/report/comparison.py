"""Two reports compared: what is significantly better or worse, and what else changed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field

from megacompile.report import format as fmt
from megacompile.report import summary
from megacompile.report.model import Baseline, Candidate, Ratio, Record, Report, Status, Verdict

Direction = Literal["better", "worse", "changed"]
Side = Literal["before", "after"]
Quantity = Literal["speed-up", "latency", "metric", "size", "parameters", "peak memory"]

LATENCY_NOISE = 0.05
MEMORY_NOISE = 0.05
SIZE_NOISE = 0.001


class Change(Record):
    """One figure that differs. `significant` by the rule that `basis` states."""

    quantity: Quantity
    label: str
    before: float
    after: float
    before_text: str
    after_text: str
    direction: Direction
    significant: bool
    basis: str


class GateChange(Record):
    """A gate that passes in one report and fails, or is missing, in the other."""

    name: str
    before: bool | None
    after: bool | None


class EngineDiff(Record):
    """A candidate or a baseline, matched by name."""

    name: str
    presence: Literal["both", "only before", "only after"] = "both"
    status_before: Status | None = None
    status_after: Status | None = None
    precision_before: str | None = None
    precision_after: str | None = None
    changes: list[Change] = Field(default_factory=list)
    gates: list[GateChange] = Field(default_factory=list)

    @property
    def differs(self) -> bool:
        moved = self.presence != "both" or self.status_before != self.status_after
        moved = moved or self.precision_before != self.precision_after
        return moved or bool(self.changes) or bool(self.gates)


class Difference(Record):
    """A value that differs at a dotted path; null where there is none."""

    path: str
    before: str | None
    after: str | None


@dataclass(frozen=True)
class Rules:
    """What may be compared. `latency_noise` is none when the machines differ."""

    latency_noise: float | None
    speedups: bool


class ReportDiff(Record):
    """Everything that differs between two reports."""

    name_before: str
    name_after: str
    created_before: str
    created_after: str
    verdict_before: Verdict
    verdict_after: Verdict
    winner_before: str | None
    winner_after: str | None
    machine_before: str
    machine_after: str
    same_machine: bool
    reference_before: str | None = None
    reference_after: str | None = None
    withheld: list[Side] = Field(default_factory=list)
    winner: EngineDiff | None = None
    candidates: list[EngineDiff] = Field(default_factory=list)
    baselines: list[EngineDiff] = Field(default_factory=list)
    spec: list[Difference] = Field(default_factory=list)
    versions: list[Difference] = Field(default_factory=list)

    @property
    def worse(self) -> list[Change]:
        """What got significantly worse, over all candidates."""
        return [
            c
            for one in self.candidates
            for c in one.changes
            if c.significant and c.direction == "worse"
        ]

    @property
    def better(self) -> list[Change]:
        """What got significantly better, over all candidates."""
        return [
            c
            for one in self.candidates
            for c in one.changes
            if c.significant and c.direction == "better"
        ]


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
        winner=_engine(first, second, rules) if first and second else None,
        candidates=_matched(
            {c.name: c for c in a.candidates}, {c.name: c for c in b.candidates}, rules
        ),
        baselines=_matched(
            {c.name: c for c in a.baselines}, {c.name: c for c in b.baselines}, rules
        ),
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
    return f"{report.environment.machine}, {fmt.plural(report.environment.threads, 'thread')}"


def _latency_noise(a: Report, b: Report) -> float:
    """What a latency may drift between two builds: 5 %, or more when an A/A check saw more."""
    checks = [report.aa_check for report in (a, b) if report.aa_check]
    seen = [abs(end - 1) for check in checks for end in (check.low, check.high)]
    return max([LATENCY_NOISE, *(one for one in seen if math.isfinite(one))])


def _matched(
    before: Mapping[str, Candidate | Baseline],
    after: Mapping[str, Candidate | Baseline],
    rules: Rules,
) -> list[EngineDiff]:
    found = []
    for name in dict.fromkeys([*before, *after]):
        one, other = before.get(name), after.get(name)
        if one is not None and other is not None:
            found.append(_engine(one, other, rules))
        elif one is not None:
            found.append(EngineDiff(name=name, presence="only before", status_before=one.status))
        elif other is not None:
            found.append(EngineDiff(name=name, presence="only after", status_after=other.status))
    return found


def _engine(a: Candidate | Baseline, b: Candidate | Baseline, rules: Rules) -> EngineDiff:
    changes = [*_point_changes(a, b, rules), *_metric_changes(a, b)]
    changes += _figure("size", "size", a.size_bytes, b.size_bytes, fmt.size, SIZE_NOISE)
    gates: list[GateChange] = []
    if isinstance(a, Candidate) and isinstance(b, Candidate):
        changes += _parameters(a.parameters, b.parameters)
        gates = _gates(a, b)
    name = b.name if a.name == b.name else f"{a.name} → {b.name}"
    return EngineDiff(
        name=name,
        status_before=a.status,
        status_after=b.status,
        precision_before=a.precision,
        precision_after=b.precision,
        changes=changes,
        gates=gates,
    )


def _point_changes(a: Candidate | Baseline, b: Candidate | Baseline, rules: Rules) -> list[Change]:
    changes = []
    for one in a.points:
        other = summary.point_at(b, one.dims)
        if other is None:
            continue
        at = f" at {fmt.dims(one.dims)}"
        if rules.speedups and one.speedup and other.speedup:
            changes += _speedup(f"speed-up{at}", one.speedup, other.speedup)
        if rules.latency_noise is None:
            continue
        changes += _figure(
            "latency",
            f"median latency{at}",
            one.latency_ms.p50,
            other.latency_ms.p50,
            fmt.milliseconds,
            rules.latency_noise,
        )
        changes += _figure(
            "peak memory",
            f"peak memory{at}",
            one.peak_memory_mb,
            other.peak_memory_mb,
            fmt.megabytes,
            MEMORY_NOISE,
        )
    return changes


def _speedup(label: str, a: Ratio, b: Ratio) -> list[Change]:
    if a == b:
        return []
    apart = a.high < b.low or b.high < a.low
    return [
        Change(
            quantity="speed-up",
            label=label,
            before=a.median,
            after=b.median,
            before_text=fmt.speedup(a),
            after_text=fmt.speedup(b),
            direction=_direction(b.median - a.median),
            significant=apart,
            basis="95 % intervals " + ("do not overlap" if apart else "overlap"),
        )
    ]


def _figure(
    quantity: Quantity, label: str, a: float | None, b: float | None, text: Any, noise: float
) -> list[Change]:
    """A figure of which less is better."""
    if a is None or b is None or a == b or not (math.isfinite(a) and math.isfinite(b)):
        return []
    factor = max(abs(a), abs(b)) / min(abs(a), abs(b)) if a and b else math.inf
    significant = factor > 1 + noise
    basis = f"{'more' if significant else 'not more'} than {fmt.percent(noise, 2)} apart"
    return [
        Change(
            quantity=quantity,
            label=label,
            before=a,
            after=b,
            before_text=text(a),
            after_text=text(b),
            direction=_direction(a - b),
            significant=significant,
            basis=basis,
        )
    ]


def _parameters(a: int | None, b: int | None) -> list[Change]:
    if a is None or b is None or a == b:
        return []
    return [
        Change(
            quantity="parameters",
            label="parameters",
            before=a,
            after=b,
            before_text=fmt.integer(a),
            after_text=fmt.integer(b),
            direction="changed",
            significant=True,
            basis="counted exactly",
        )
    ]


def _metric_changes(a: Candidate | Baseline, b: Candidate | Baseline) -> list[Change]:
    changes = []
    for name, before in a.metric.items():
        after = b.metric.get(name)
        if after is None or after.value == before.value:
            continue
        change = summary.metric_change(name, before, after)
        basis = "sampling error unknown"
        if change.margin is not None:
            word = "outside" if change.significant else "within"
            basis = f"{word} ± {fmt.number(change.margin, 2)}, the difference's 95 % interval"
        changes.append(
            Change(
                quantity="metric",
                label=name,
                before=before.value,
                after=after.value,
                before_text=fmt.metric(before),
                after_text=fmt.metric(after),
                direction="better" if change.better else "worse",
                significant=change.significant,
                basis=basis,
            )
        )
    return changes


def _gates(a: Candidate, b: Candidate) -> list[GateChange]:
    before = {gate.name: gate.passed for gate in a.gates}
    after = {gate.name: gate.passed for gate in b.gates}
    return [
        GateChange(name=name, before=before.get(name), after=after.get(name))
        for name in dict.fromkeys([*before, *after])
        if before.get(name) != after.get(name)
    ]


def _direction(gain: float) -> Direction:
    return "better" if gain > 0 else "worse"
