"""Parts of the report that training leaves: steps beside the plain one, and recoveries."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from megacompile.report.figures import Latency, Metric, Ratio, Record

WAITING = 0.1
"""The share of a step's time from which waiting for its batch is worth a remedy."""


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


class Look(Record):
    """The monitored value after so many steps."""

    step: int
    value: float


class RecoveryRecord(Record):
    """What a `recover` step brought back. The metrics are the user's, on the model as it came to
    `recover` (for quantization-aware training: quantized without it) and as it left.

    `monitor` chose the weights; those of `best_step` were kept. `losses` is of single steps,
    thinned out to 400.
    """

    metric_before: dict[str, Metric] = Field(default_factory=dict)
    metric_after: dict[str, Metric] = Field(default_factory=dict)
    monitor: str
    looks: list[Look] = Field(default_factory=list)
    best_step: int
    steps: int
    planned_steps: int
    samples: int
    trained_parameters: int
    learning_rate: float
    seconds: float
    losses: list[float] = Field(default_factory=list)


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
