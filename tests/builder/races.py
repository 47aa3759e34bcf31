"""Engines that were raced, as data."""

from __future__ import annotations

from megacompile.measure.rounds import EngineTimes
from megacompile.measure.session import Contestant, Measured
from megacompile.report.figures import Latency, Metric, Ratio
from megacompile.report.model import Baseline, Candidate, Point

ROUNDS = 12


def measured(name: str, median_ms: float, memory_mb: float | None = None) -> Measured:
    """An engine whose rounds differ by half a percent, at one point."""
    medians = [median_ms * (1 + 0.005 * (number % 2)) for number in range(ROUNDS)]
    times = EngineTimes(name, 1, medians * 3, medians)
    return Measured(Contestant(name, name), times=[times], memory=[memory_mb])


def point(p50: float, speedup: Ratio | None = None, memory_mb: float | None = None) -> Point:
    return Point(
        dims={"n": 4},
        latency_ms=Latency(p50=p50, p95=p50, p99=p50, mean=p50, count=36),
        throughput=4000 / p50,
        speedup=speedup,
        peak_memory_mb=memory_mb,
    )


def ratio(median: float, spread: float = 0.01) -> Ratio:
    return Ratio(median=median, low=median - spread, high=median + spread)


def candidate(name: str, *points: Point, **more: object) -> Candidate:
    described = {"name": name, "variant": name, "backend": "onnxruntime", "status": "built"}
    return Candidate.model_validate({**described, "points": list(points), **more})


def baseline(name: str, p50: float, accuracy: float | None = None) -> Baseline:
    metric = {} if accuracy is None else {"accuracy": Metric(value=accuracy)}
    return Baseline(name=name, points=[point(p50)], metric=metric)
