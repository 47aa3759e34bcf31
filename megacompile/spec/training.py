"""The part of a spec that says how a model is trained."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_serializer, model_validator

from megacompile.spec.parts import Part, Positive

Decay = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Beta = Annotated[float, Field(ge=0, lt=1)]


class Adam(Part):
    """torch.optim.Adam."""

    lr: Positive = 1e-3
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    eps: Positive = 1e-8
    weight_decay: Decay = 0.0


class AdamW(Adam):
    """torch.optim.AdamW."""

    weight_decay: Decay = 0.01


class SGD(Part):
    """torch.optim.SGD."""

    lr: Positive = 1e-2
    momentum: Beta = 0.0
    weight_decay: Decay = 0.0
    nesterov: bool = False

    @model_validator(mode="after")
    def _momentum(self) -> SGD:
        if self.nesterov and not self.momentum:
            raise ValueError("nesterov needs momentum above 0")
        return self


class Optimizer(Part):
    """Exactly one optimizer with its options: `adamw`, or `adamw: {lr: 3.0e-4}`."""

    adamw: AdamW | None = None
    adam: Adam | None = None
    sgd: SGD | None = None

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        if isinstance(value, str):
            return {value: {}}
        if isinstance(value, dict):
            return {name: {} if options is None else options for name, options in value.items()}
        return value

    @model_validator(mode="after")
    def _one(self) -> Optimizer:
        given = [name for name in ("adamw", "adam", "sgd") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(
                "exactly one of adamw, adam, sgd is needed; "
                + (f"got {', '.join(given)}" if given else "got none")
            )
        return self

    @model_serializer
    def _as_written(self) -> dict[str, Any]:
        return {self.kind: self.options.model_dump(exclude_unset=True)}

    @property
    def kind(self) -> Literal["adamw", "adam", "sgd"]:
        """Which optimizer is given."""
        if self.adamw is not None:
            return "adamw"
        return "adam" if self.adam is not None else "sgd"

    @property
    def options(self) -> Adam | SGD:
        """The given optimizer's options."""
        found: Adam | SGD | None = getattr(self, self.kind)
        assert found is not None
        return found


class Train(Part):
    """How a model is trained: loss, data, optimizer, and how long the measured run is.

    A batch is a mapping of names to tensors whose first axis counts samples; the spec's
    `inputs` are passed to `forward`, and the loss sees all of them. `batch_size` samples make
    one optimizer step; `accumulate` cuts them into that many pieces, whose mean gradient is used.
    """

    loss: str = Field(description="FILE.py:NAME; loss(outputs, batch) -> scalar tensor")
    batches: str = Field(
        description="FILE.py:NAME that gives dicts of name to array whose first axis counts "
        "samples (any number of them: they are cut and joined to batches), or a "
        "torch.utils.data.Dataset of single samples; or npz:FILE, lmdb:FOLDER, arrays:FOLDER"
    )
    optimizer: Optimizer = Optimizer(adamw=AdamW())
    batch_size: int = Field(ge=1, le=2**20, description="samples of one optimizer step")
    accumulate: int = Field(1, ge=1, description="pieces that a batch is computed in")
    clip_norm: Positive | None = Field(None, description="largest norm of all gradients together")
    steps: int = Field(20, ge=1, le=10**7, description="optimizer steps of the loss curves")
    verify_steps: int = Field(
        20, ge=1, le=10**4, description="steps after which parameters are compared"
    )
    workers: int = Field(0, ge=0, le=256, description="processes that load samples")
    preload: bool = Field(False, description="keep all samples in memory")

    @field_validator("loss", "batches")
    @classmethod
    def _reference(cls, value: str) -> str:
        if ":" not in value:
            raise ValueError(f"'{value}' has no ':'; write FILE.py:NAME")
        return value

    @property
    def micro_batch(self) -> int:
        """Samples that are in memory at once."""
        return self.batch_size // self.accumulate
