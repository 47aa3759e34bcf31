"""The limits of a budget, each held against what was measured. Pure: figures in, gates out."""

from __future__ import annotations

from collections.abc import Mapping

from megacompile.measure import relative_drop
from megacompile.report import Candidate, Gate, Metric
from megacompile.spec import Budget


def gates_of(budget: Budget, candidate: Candidate, original: Mapping[str, Metric]) -> list[Gate]:
    """Every limit of the budget held against a candidate that was built and measured."""
    gates: list[Gate] = []
    first = candidate.points[0] if candidate.points else None
    error = candidate.lowering.error if candidate.lowering else None
    if budget.metric_drop is not None:
        gates.append(metric_gate(budget.metric_drop, candidate.metric, original))
    if budget.cosine is not None:
        cosine = error.cosine_min if error else None
        gates.append(least("cosine", budget.cosine, cosine, error.note if error else None))
    if error is not None:
        gates.append(most("dead_channels", 0, len(error.dead_channels)))
    if budget.size_mb is not None:
        gates.append(size_gate(budget.size_mb, candidate))
    if not candidate.executed:
        return gates  # time and memory are judged where the engine can run
    # Without a speed-up (the A/A check failed) there is nothing to hold against the limit; no
    # winner is named then.
    if budget.speedup is not None and first is not None and first.speedup is not None:
        gates.append(least("speedup", budget.speedup, first.speedup.low))
    if budget.latency_ms is not None:
        latency = first.latency_ms.p50 if first else None
        gates.append(most("latency_ms", budget.latency_ms, latency))
    if budget.peak_memory_mb is not None:
        peak = first.peak_memory_mb if first else None
        gates.append(most("peak_memory_mb", budget.peak_memory_mb, peak))
    return gates


def metric_gate(
    limit: float, metrics: Mapping[str, Metric], original: Mapping[str, Metric]
) -> Gate:
    """The worst relative loss of any metric."""
    worst, name = float("-inf"), None
    for key, before in original.items():
        after = metrics.get(key)
        if after is None:
            return most("metric_drop", limit, None, f"'{key}' was not measured")
        drop = relative_drop(before.value, after.value, before.higher_is_better)
        if drop > worst:
            worst, name = drop, key
    if name is None:
        return most("metric_drop", limit, None, "no metric")
    note = f"{name}: {original[name].value:.4g} to {metrics[name].value:.4g}"
    return most("metric_drop", limit, worst, note)


def size_gate(limit: float, candidate: Candidate) -> Gate:
    """The size of the engine's files in 10^6 bytes."""
    size = candidate.size_bytes / 1e6 if candidate.size_bytes is not None else None
    return most("size_mb", limit, size)


def least(name: str, limit: float, value: float | None, note: str | None = None) -> Gate:
    """A gate that a value passes when it is at least the limit."""
    passed = value is not None and value >= limit
    return Gate(name=name, limit=limit, value=value, passed=passed, note=note)


def most(name: str, limit: float, value: float | None, note: str | None = None) -> Gate:
    """A gate that a value passes when it is at most the limit."""
    passed = value is not None and value <= limit
    return Gate(name=name, limit=limit, value=value, passed=passed, note=note)
