"""The report as data: `report.json` is the truth, HTML and Markdown are views of it."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from megacompile.report.figures import Latency, Metric, Ratio, Record
from megacompile.report.trained import RecoveryRecord, StepError, TrainingRecord
from megacompile.system import Environment

Verdict = Literal["improved", "no_improvement", "outside_budget", "failed", "built_not_executed"]
Status = Literal["built", "failed", "unavailable", "outside_budget"]


class WithTraining(Record):
    """A part that has something of training, or of a recovery, only where there was one."""

    @model_serializer(mode="wrap")
    def _without_absent(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        found: dict[str, Any] = handler(self)
        for name in ("training", "recovery"):
            if found.get(name, ...) is None:
                del found[name]
        return found


class Point(Record):
    """One benchmark point of one engine or baseline.

    `histogram` holds up to 200 latencies in ms, evenly spaced quantiles of all that were taken.
    `speedup` is baseline time over this engine's time; null when the A/A check withheld it.
    `throughput` counts samples (batch entries) per second at the median latency.
    """

    dims: dict[str, int]
    latency_ms: Latency
    histogram: list[float] = Field(default_factory=list)
    throughput: float | None = None
    speedup: Ratio | None = None
    peak_memory_mb: float | None = None


class Skipped(Record):
    """A place that a pass left as it is."""

    site: str
    reason: str


class SitesRecord(Record):
    """What a pass could have changed, what it changed, and why the rest was left."""

    kind: str = "site"
    matched: int
    changed: int
    skipped: list[Skipped] = Field(default_factory=list)


class ErrorRecord(Record):
    """A step's outputs against the original's, the worst over all samples and outputs.

    `relative` is the largest absolute difference over the largest absolute value of the
    original's output. `dead_channels` names output channels that vary in the original and
    are constant here. `inputs` counts the input sets compared.
    """

    max_abs: float
    relative: float
    cosine_min: float
    inputs: int = 0
    dead_channels: list[str] = Field(default_factory=list)
    worst: str | None = None
    note: str | None = None


class Step(WithTraining):
    """One pass of one candidate's plan as it was carried out."""

    pass_: str = Field(alias="pass")
    options: dict[str, Any] = Field(default_factory=dict)
    form: str
    effect: Literal["EXACT", "NUMERIC", "LOSSY"]
    inserted: bool = False
    cached: bool = False
    cache_reason: str | None = None
    seconds: float = 0.0
    verification_seconds: float = 0.0
    peak_memory_mb: float | None = None
    sites: SitesRecord | None = None
    notes: list[str] = Field(default_factory=list)
    size_bytes: int | None = None
    parameters: int | None = None
    error: ErrorRecord | None = None
    training: StepError | None = None
    recovery: RecoveryRecord | None = None


class Gate(Record):
    """One limit of the budget, or a check that is always on (`dead_channels`, `verification`)."""

    name: str
    limit: float | None
    value: float | None
    passed: bool
    note: str | None = None


class Baseline(Record):
    """The unchanged model, as people would run it without megacompile."""

    name: str
    status: Status = "built"
    reason: str | None = None
    precision: str | None = None
    points: list[Point] = Field(default_factory=list)
    metric: dict[str, Metric] = Field(default_factory=dict)
    size_bytes: int | None = None
    load_seconds: float | None = None
    executed: bool = True


class Candidate(WithTraining):
    """One variant on one backend. `lowering` is the engine's own step after the passes.

    `executed` False: the engine is for other hardware than this machine's. Its errors and metric
    are those of the last form that runs here, and it has no latency.
    """

    name: str
    variant: str
    backend: str
    status: Status
    reason: str | None = None
    remedy: str | None = None
    failed_step: str | None = None
    precision: str | None = None
    notes: list[str] = Field(default_factory=list)
    steps: list[Step] = Field(default_factory=list)
    lowering: Step | None = None
    points: list[Point] = Field(default_factory=list)
    versus_best_baseline: Ratio | None = None
    size_bytes: int | None = None
    files: dict[str, int] = Field(default_factory=dict)
    parameters: int | None = None
    load_seconds: float | None = None
    metric: dict[str, Metric] = Field(default_factory=dict)
    gates: list[Gate] = Field(default_factory=list)
    executed: bool = True
    training: TrainingRecord | None = None
    recovery: RecoveryRecord | None = None


class AACheck(Record):
    """The first baseline raced against a second process of itself."""

    ratio: float
    low: float
    high: float
    passed: bool
    note: str | None = None


class Source(Record):
    """The model as the user gave it."""

    form: str
    reference: str
    fingerprint: str
    parameters: int
    size_bytes: int
    dims: dict[str, int] = Field(default_factory=dict)
    operations: float | None = None
    bytes_moved: float | None = None


class Ceiling(Record):
    """What this machine can do at best, and the share of it that the winner reached.

    `rates` are measured matrix products in operations per second by dtype, `bandwidth` is
    in bytes per second. `floor_ms` is the least time the model's operations and bytes need
    at those rates; `reached` is `floor_ms` over the winner's median latency.
    """

    rates: dict[str, float]
    bandwidth: float
    dtype: str | None = None
    floor_ms: float | None = None
    bound: Literal["compute", "memory"] | None = None
    reached: float | None = None


class Provenance(Record):
    """Everything needed to build it again."""

    command: str
    spec_path: str
    spec_sha256: str
    files: dict[str, str] = Field(default_factory=dict)
    commit: str | None = None
    seed: int = 0


class BuildTime(Record):
    """Where the build's wall time went, in seconds.

    `evaluation` is the user's own Python: evaluate, calibration, building the model.
    `verification` is part of `own`.
    """

    total: float
    passes: float
    lowering: float
    verification: float
    measuring: float
    evaluation: float
    own: float


class Report(WithTraining):
    """One build, whole: what was built, how fast and how right it is, and where."""

    schema_: Literal[1] = Field(default=1, alias="schema")
    name: str
    created: str
    verdict: Verdict
    sentence: str
    winner: str | None = None
    warnings: list[str] = Field(default_factory=list)
    source: Source | None = None
    environment: Environment
    spec: dict[str, Any]
    baselines: list[Baseline] = Field(default_factory=list)
    aa_check: AACheck | None = None
    candidates: list[Candidate] = Field(default_factory=list)
    ceiling: Ceiling | None = None
    provenance: Provenance
    build_seconds: BuildTime | None = None
    training: TrainingRecord | None = None
    recovery: RecoveryRecord | None = None

    def to_json(self) -> str:
        """The text of `report.json`, byte-equal for equal reports."""
        return self.model_dump_json(by_alias=True, indent=2) + "\n"
