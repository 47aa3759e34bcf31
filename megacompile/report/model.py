"""The report as data: `report.json` is the truth, HTML and Markdown are views of it."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
)

Verdict = Literal["improved", "no_improvement", "outside_budget", "failed", "built_not_executed"]
Status = Literal["built", "failed", "unavailable", "outside_budget"]


class Record(BaseModel):
    """Base of all parts: unknown keys are errors, so that no view can invent one."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)


class WithTraining(Record):
    """A part that has something of training only in reports of that workload."""

    @model_serializer(mode="wrap")
    def _without_absent(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        found: dict[str, Any] = handler(self)
        if found.get("training", ...) is None:
            del found["training"]
        return found


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


class Metric(Record):
    """A metric of the user's `evaluate` hook with its sampling error (one standard error)."""

    value: float
    standard_error: float | None = None
    samples: int | None = None
    higher_is_better: bool = True


class Skipped(Record):
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


class StepError(Record):
    """An optimised training step against the plain one, same seed and batches.

    `loss` is the first loss' relative difference. `relative` is the norm of a gradient's
    difference over the plain gradient's norm, `cosine` theirs; both the worst of all parameters,
    by name. `after_one` and `after_many` are the distance of all parameters after so many steps
    over the way that the plain step took; null where it was not run so far.
    """

    loss: float
    cosine_min: float
    worst: str
    relative_max: float
    relative_worst: str
    after_one: float | None = None
    after_many: float | None = None
    many: int | None = None
    parameters: int = 0
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


class Operator(Record):
    """An operator's own time in one step; `share` is of all operators' time."""

    name: str
    ms: float
    calls: int
    share: float


class StepFigures(Record):
    """One kind of step, measured. Memory is of live tensors, in MB (10^6 bytes).

    `peak_activation_mb`: the most during forward, loss and backward of one piece of a batch,
    beside parameters, gradients, optimizer state and the piece. `peak_memory_mb`: the most
    during a whole step, all of those included. `state_mb` names the lasting parts;
    `saved_mb` is what the blocks keep for the backward pass. `timeline` has milliseconds and
    MB over one step. `waiting` is the share of a step's time that it waits for its batch, and
    `waiting_ms` how long, on average over the measured run without its first step, whose batch
    took `data_start_ms`: the data is opened and workers are started.
    """

    step_ms: Latency
    peak_activation_mb: float
    peak_memory_mb: float
    resident_mb: float | None = None
    state_mb: dict[str, float] = Field(default_factory=dict)
    saved_mb: dict[str, float] = Field(default_factory=dict)
    samples_per_second: float
    tokens_per_second: float | None = None
    waiting: float | None = None
    waiting_ms: float | None = None
    data_start_ms: float | None = None
    skipped: int = 0
    timeline: list[tuple[float, float]] = Field(default_factory=list)
    operators: list[Operator] = Field(default_factory=list)
    losses: list[float] = Field(default_factory=list)


class LargestBatch(Record):
    """Samples in memory at once that fit in the plain step's memory, found by trying."""

    plain: int
    optimised: int
    limit_mb: float
    note: str | None = None


class CheckpointRecord(Record):
    """A block that could be checkpointed, what it keeps and costs, and whether it was."""

    block: str
    saved_mb: float
    recompute_ms: float
    chosen: bool
    policy: str | None = None
    why: str | None = None


class CompileRecord(Record):
    """What torch.compile made of the step."""

    graphs: int
    graph_breaks: int
    recompilations: int
    reasons: list[str] = Field(default_factory=list)


class DistributeRecord(Record):
    """The strategy, its reckoning in MB, and what each process was measured to hold."""

    strategy: str
    processes: int
    reckoning_mb: dict[str, float] = Field(default_factory=dict)
    state_mb_by_rank: list[float] = Field(default_factory=list)
    state_mb_of_one: float | None = None


WAITING = 0.1
"""The share of a step's time from which waiting for its batch is worth a remedy."""


class TrainingRecord(Record):
    """A candidate's step beside the plain one. `step_time_ratio` is optimised over plain time,
    `memory_ratio` optimised over plain `peak_memory_mb`. `waiting_remedy` is there if the optimised
    step waits for its batch for more than WAITING of its time."""

    plain: StepFigures
    optimised: StepFigures
    step_time_ratio: Ratio | None = None
    memory_ratio: float
    activation_ratio: float
    gradient: StepError
    largest_batch: LargestBatch | None = None
    checkpoints: list[CheckpointRecord] = Field(default_factory=list)
    compile: CompileRecord | None = None
    distribute: DistributeRecord | None = None
    recipe: dict[str, Any] = Field(default_factory=dict)
    waiting_remedy: str | None = None
    notes: list[str] = Field(default_factory=list)


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


class Environment(Record):
    """The machine and the versions the figures were taken with."""

    machine: str
    isa: list[str]
    cores: int
    threads: int
    memory_mb: int
    gpus: list[str] = Field(default_factory=list)
    system: str
    python: str
    versions: dict[str, str]
    load_average: float | None = None


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

    def to_json(self) -> str:
        """The text of `report.json`, byte-equal for equal reports."""
        return self.model_dump_json(by_alias=True, indent=2) + "\n"
