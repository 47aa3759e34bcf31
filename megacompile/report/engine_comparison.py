"""Two engines of one name compared: each figure, and whether it is significantly apart."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from megacompile.report import format as fmt
from megacompile.report import summary
from megacompile.report.diff_model import Change, Direction, EngineDiff, GateChange, Quantity
from megacompile.report.figures import Ratio
from megacompile.report.model import Baseline, Candidate

Engine = Candidate | Baseline

MEMORY_NOISE = 0.05
SIZE_NOISE = 0.001


@dataclass(frozen=True)
class Rules:
    """What may be compared. `latency_noise` is none when the machines differ."""

    latency_noise: float | None
    speedups: bool


def engine_diff(a: Engine, b: Engine, rules: Rules) -> EngineDiff:
    """`a` is the earlier engine, `b` the later one."""
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


def _point_changes(a: Engine, b: Engine, rules: Rules) -> list[Change]:
    changes: list[Change] = []
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
    quantity: Quantity,
    label: str,
    a: float | None,
    b: float | None,
    text: Callable[[float], str],
    noise: float,
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


def _metric_changes(a: Engine, b: Engine) -> list[Change]:
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
