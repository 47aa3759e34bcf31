"""Everything that training passes decide, as plain data; `step` turns it into a training step.

A pass edits the recipe and nothing else, so that a training bundle is the user's model, its
weights and one JSON file. No torch here.
"""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Policy = Literal["all", "keep-matmul"]


class _Data(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Checkpoint(_Data):
    """A module whose inner activations are computed again in the backward pass.

    `keep-matmul` keeps the results of matrix products and computes only the rest again.
    """

    module: str
    policy: Policy = "all"


class BlockCost(_Data):
    """What a block was measured to keep and to cost, and whether it is checkpointed.

    `saved_bytes` are kept for the backward pass when the block isn't checkpointed,
    `kept_bytes` when it is; `recompute_ms` is its forward's time.
    """

    block: str
    saved_bytes: int
    recompute_ms: float
    chosen: bool
    kept_bytes: int = 0
    why: str | None = None


class Compression(_Data):
    """Saved tensors stored as integers with one scale for every `block_size` values.

    Tensors with fewer than `minimum_elements`, integers and masks stay as they are.
    """

    bits: Literal[8, 4] = 8
    block_size: int = Field(256, ge=1)
    minimum_elements: int = Field(4096, ge=0)


class Offload(_Data):
    """Saved tensors of at least `minimum_elements` wait in host memory for the backward pass.

    `modules` limits it to what these modules save; empty: everything.
    """

    minimum_elements: int = Field(65536, ge=0)
    modules: tuple[str, ...] = ()


class Scaler(_Data):
    """A float16 gradient scaler; the scale stays within `minimum` and `maximum`."""

    initial: float = Field(8192.0, gt=0)
    minimum: float = Field(4096.0, gt=0)
    maximum: float = Field(65536.0, gt=0)
    growth_interval: int = Field(2000, ge=1)

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not self.minimum <= self.initial <= self.maximum:
            raise ValueError(
                "minimum <= initial <= maximum is needed; got "
                f"{self.minimum:g}, {self.initial:g}, {self.maximum:g}"
            )
        return self


class Compile(_Data):
    """torch.compile of the whole step, or of each of `modules`.

    `activation_memory_budget` is the partitioner's own: the share of the activations that an
    uncompiled step would keep (1: it is free to keep all).
    """

    what: Literal["step", "blocks"]
    modules: tuple[str, ...] = ()
    activation_memory_budget: float | None = Field(None, ge=0, le=1)


class Distribute(_Data):
    """The strategy over `processes` processes; `blocks` are the units that FSDP shards.

    `reckoning` says in bytes why it was chosen.
    """

    strategy: Literal["ddp", "fsdp"]
    processes: int = Field(ge=1)
    blocks: tuple[str, ...] = ()
    reckoning: dict[str, int] = Field(default_factory=dict)


class Recipe(_Data):
    """What the passes decided, whole. The empty recipe is the plain step.

    `ties` are groups of parameter names that share one storage; the first of a group owns it.
    `costs` are the blocks that a memory budget chose among, for the report.
    """

    ties: tuple[tuple[str, ...], ...] = ()
    checkpoints: tuple[Checkpoint, ...] = ()
    costs: tuple[BlockCost, ...] = ()
    compression: Compression | None = None
    offload: Offload | None = None
    autocast: Literal["bfloat16", "float16"] | None = None
    scaler: Scaler | None = None
    compile: Compile | None = None
    distribute: Distribute | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        tied = [name for group in self.ties for name in group]
        twice = sorted({name for name in tied if tied.count(name) > 1})
        if twice:
            raise ValueError(f"parameter '{twice[0]}' stands in two ties")
        wrapped = [one.module for one in self.checkpoints]
        again = sorted({name for name in wrapped if wrapped.count(name) > 1})
        if again:
            raise ValueError(f"module '{again[0]}' is checkpointed twice")
        return self

    def edited(self, **changes: Any) -> Recipe:
        """A recipe with some fields changed, checked again."""
        values = {name: getattr(self, name) for name in type(self).model_fields}
        return Recipe(**{**values, **changes})
