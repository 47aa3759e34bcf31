"""Parts of the report that every kind of run has: times, ratios, metrics."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Record(BaseModel):
    """Base of all parts: unknown keys are errors, so that no view can invent one."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)


class Latency(Record):
    """Percentiles of one engine's calls at one point, in milliseconds."""

    p50: float
    p95: float
    p99: float
    mean: float
    count: int


class Ratio(Record):
    """A median of paired ratios with its bootstrap 95 % interval."""

    median: float
    low: float
    high: float


class Metric(Record):
    """A metric of the user's `evaluate` hook with its sampling error (one standard error)."""

    value: float
    standard_error: float | None = None
    samples: int | None = None
    higher_is_better: bool = True
