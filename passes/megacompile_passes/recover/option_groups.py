"""Groups of options of `recover`: what is learned, and what is done to inputs, outputs, weights."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from megacompile_passes.precision.quantize.options import KEEP

Weight = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Options(BaseModel):
    """What a group of options has in common."""

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
