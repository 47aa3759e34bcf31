"""Options of `recover`: train until the answers are right again, against the original model."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from megacompile.plan import Effect, Fact, In, Out, Pass, Traits
from megacompile.spec import AdamW, Optimizer
from megacompile_passes.precision.quantize.options import KEEP

Weight = Annotated[float, Field(gt=0, allow_inf_nan=False)]
TRAINING = "training"  # the backend of that workload


class Options(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Distill(Options):
    """Learn the original model's answers (Hinton et al., arXiv:1503.02531) and, where named, its
    hidden states (Jiao et al., arXiv:1909.10351)."""

    loss: Literal["mse", "cosine", "kl"] = Field(
        "mse",
        description="of floating outputs. mse: squared difference over the original's mean "
        "square; cosine: 1 - cosine along the last axis; kl: divergence of softmax along the last "
        "axis, for logits",
    )
    weight: float = Field(1.0, ge=0, description="of the outputs' loss; 0: hidden states alone")
    temperature: Weight = Field(1.0, description="kl: logits are divided by it")
    outputs: list[str] = Field(
        default_factory=list, description="names (globs) of outputs; default: all floating ones"
    )
    hidden: list[str] = Field(
        default_factory=list,
        description="names (globs) of modules whose outputs are learned too, "
        "each by squared difference over the original's mean square",
    )
    hidden_weight: Weight = Field(1.0, description="of the hidden states' mean loss")
    mask: str | None = Field(
        None,
        description="an input whose zeros mark positions that don't count (padding); its "
        "axes are the first ones of a hidden state or output",
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if not self.weight and not self.hidden:
            raise ValueError("weight: 0 leaves nothing to learn: name `hidden` modules")
        if "temperature" in self.model_fields_set and self.loss != "kl":
            raise ValueError(f"`temperature` is for loss: kl, not {self.loss}")
        if "hidden_weight" in self.model_fields_set and not self.hidden:
            raise ValueError("`hidden_weight` without `hidden` modules does nothing")
        return self


class Task(Options):
    """Learn the task itself: the user's loss, or cross-entropy to class numbers."""

    loss: str | None = Field(
        None,
        description="FILE.py:NAME; loss(outputs, batch) -> scalar tensor. In workload "
        "training it is `train.loss` unless `labels` are named",
    )
    labels: str | None = Field(None, description="entry of the batches with class numbers")
    output: str | None = Field(None, description="output with the logits; default: the only one")
    label_smoothing: float = Field(0.0, ge=0, lt=1, description="cross-entropy's")
    weight: Weight = 1.0

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.loss is not None and self.labels is not None:
            raise ValueError("one of `loss` and `labels`, not both")
        for name in ("output", "label_smoothing"):
            if name in self.model_fields_set and self.labels is None:
                raise ValueError(f"`{name}` belongs to `labels`: your own loss does that itself")
        return self


class Masking(Options):
    """Random entries of an input replaced, for the model and the original alike: more inputs on
    which both have to agree."""

    input: str
    share: float = Field(gt=0, lt=1, description="of the entries, drawn anew in every step")
    value: float = Field(0.0, description="what stands there instead")
    keep: list[float] = Field(
        default_factory=list, description="values that are never replaced (special tokens)"
    )


class Clipping(Options):
    """Outputs of modules held within a limit, from now on and for good: no outlier stretches the
    grid of integers."""

    modules: list[str] = Field(min_length=1, description="names (globs)")
    limit: Weight | None = Field(None, description="the largest absolute value")
    percentile: float | None = Field(
        None,
        gt=50,
        lt=100,
        description="limit each module at this percentile of its absolute "
        "values on the first batches",
    )

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.limit is None) == (self.percentile is None):
            raise ValueError("exactly one of `limit` and `percentile` is needed")
        return self


class Quantization(Options):
    """Quantization-aware training: the model computes with rounded values while it is trained
    (Jacob et al., arXiv:1712.05877), by the rules that `quantize` lowers it with."""

    method: Literal["static", "dynamic"] = Field(
        "static",
        description="as in `quantize`: activations by ranges seen in training, or of each call",
    )
    bits: Literal[8, 4] = Field(8, description="of weights")
    per_channel: bool = Field(True, description="one scale per output channel of a weight")
    keep: list[str] = KEEP


class Recover(Pass[In, Out]):
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
