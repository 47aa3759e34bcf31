"""Options of `recover`: train until the answers are right again, against the original model."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from megacompile.plan import Effect, Fact, In, Out, Pass, Traits
from megacompile.spec import AdamW, Optimizer
from megacompile_passes.recover.option_groups import (
    Clipping,
    Distill,
    Masking,
    Quantization,
    Task,
    Weight,
)

TRAINING = "training"  # the backend of that workload


class Recover(Pass[In, Out]):
    """Training on the user's data, by the original's answers, the task, or both."""

    name: ClassVar[str] = "recover"
    effect: ClassVar[Effect] = Effect.LOSSY
    requires: ClassVar[frozenset[Fact]] = frozenset(
        {Fact.TRAINABLE, Fact.FLOAT32_WEIGHTS, Fact.UNQUANTIZED}
    )
    provides: ClassVar[frozenset[Fact]] = frozenset()
    invalidates: ClassVar[frozenset[Fact]] = frozenset()

    batches: str | None = Field(
        None,
        description="FILE.py:NAME that gives dicts of name to array (first axis: samples) or "
        "a Dataset, or npz:FILE, arrays:FOLDER, lmdb:FOLDER; workload training: `train.batches`",
    )
    samples: int = Field(100_000, ge=1, description="so many samples are used at most")
    distill: Distill | None = Field(None, description="learn the original's answers")
    task: Task | None = Field(None, description="learn the task")
    quantize: Quantization | None = Field(
        None, description="train with rounded values; the model is quantized afterwards"
    )
    epochs: float | None = Field(None, gt=0, description="how often every sample is seen")
    steps: int | None = Field(None, ge=1, description="optimizer steps, instead of epochs")
    batch_size: int = Field(32, ge=1, description="samples of one piece")
    accumulate: int = Field(1, ge=1, description="pieces whose mean gradient makes one step")
    clip_norm: Weight | None = Field(1.0, description="largest norm of all gradients together")
    optimizer: Optimizer = Optimizer(adamw=AdamW(lr=1e-4))
    schedule: Literal["cosine", "constant"] = Field(
        "cosine", description="cosine: the rate falls and restarts"
    )
    periods: int = Field(3, ge=1, description="cosine: periods in the run")
    floor: float = Field(0.01, ge=0, le=1, description="cosine: least share of the rate")
    warmup: int = Field(0, ge=0, description="steps in which the rate rises")
    lr_range_test: int | None = Field(
        None, ge=10, description="find the rate in so many steps of growing rates first"
    )
    sampling: Literal["shuffled", "loss-weighted", "pieces"] = Field(
        "shuffled",
        description="loss-weighted: the worse a sample's last loss, the oftener it "
        "comes; pieces: what the hook yields stays together as one batch, for losses that compare "
        "samples",
    )
    masking: Masking | None = None
    clip_activations: Clipping | None = None
    freeze: list[str] = Field(
        default_factory=list, description="names (globs) of parameters that stay as they are"
    )
    dropout: bool = Field(False, description="dropout while training")
    batchnorm: Literal["frozen", "train"] = Field(
        "frozen", description="frozen: normalization keeps its statistics"
    )
    autocast: Literal["bfloat16"] | None = Field(
        None, description="matrix products in bfloat16 while training; weights stay float32"
    )
    monitor: str = Field(
        "loss",
        description="what the kept weights are the best in: `loss` on held-out samples, "
        "or a metric's name",
    )
    validate_with: str | None = Field(
        None,
        description="FILE.py:NAME, evaluate(run) -> {metric: value}, for `monitor`; default: "
        "data.evaluation",
    )
    held_out: float = Field(0.05, gt=0, lt=1, description="share of samples for `loss`")
    check_every: int | None = Field(
        None, ge=1, description="steps between two looks at `monitor`; default: a tenth of the run"
    )
    patience: int | None = Field(
        None, ge=1, description="stop after so many looks without a better value"
    )
    checkpoint_seconds: float = Field(
        30.0, ge=0, description="between two checkpoints that an interrupted run goes on from"
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.distill is None and self.task is None:
            raise ValueError("nothing to learn from: write `distill: {}`, `task: {…}`, or both")
        if (self.epochs is None) == (self.steps is None):
            raise ValueError("exactly one of `epochs` and `steps` is needed")
        for name in ("periods", "floor"):
            if name in self.model_fields_set and self.schedule != "cosine":
                raise ValueError(f"`{name}` is for schedule: cosine")
        if self.validate_with is not None and self.monitor == "loss":
            raise ValueError("`validate_with` gives metrics: name one of them in `monitor`")
        if self.monitor != "loss" and "held_out" in self.model_fields_set:
            raise ValueError("`held_out` is for monitor: loss")
        if self.sampling == "pieces" and "batch_size" in self.model_fields_set:
            raise ValueError(
                "with sampling: pieces the pieces are the batches; leave out `batch_size`"
            )
        if self.sampling == "loss-weighted" and not self._has_loss_per_sample():
            raise ValueError(
                "loss-weighted sampling needs a loss per sample: `distill`, or `task` "
                "with `labels`; a loss of your own gives one number"
            )
        if self.quantize is not None and (self.dropout or self.batchnorm == "train"):
            raise ValueError(
                "with `quantize` the model is trained as it will be lowered: without "
                "dropout, normalization folded; leave `dropout` and `batchnorm` out"
            )
        return self

    def _has_loss_per_sample(self) -> bool:
        return self.distill is not None or (self.task is not None and self.task.labels is not None)

    def references(self) -> tuple[str, ...]:
        named = [self.validate_with, self.task.loss if self.task else None]
        if self.batches is not None and self.batches.partition(":")[0].endswith(".py"):
            named.append(self.batches)
        return tuple(one for one in named if one is not None)

    def uses_evaluation(self) -> bool:
        return True

    def needs_evaluation(self) -> bool:
        return self.monitor != "loss" and self.validate_with is None

    def refusal(self, traits: Traits) -> str | None:
        if traits.backend == TRAINING:
            return None
        if self.batches is None:
            return "needs to know its data: write batches: FILE.py:NAME"
        if self.task is not None and self.task.loss is None and self.task.labels is None:
            return "needs to know the task: write task: {labels: ENTRY} or {loss: FILE.py:NAME}"
        return None
