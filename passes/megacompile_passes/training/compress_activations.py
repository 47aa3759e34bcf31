"""Store what is saved for the backward pass as 8-bit integers."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from megacompile.errors import PassError
from megacompile.plan import Effect, Fact, Pass, PassContext, Result, Sites
from megacompile.training import Training


class CompressActivations(Pass[Training, Training]):
    """Saved floats with a scale per block of values; integers, masks, small tensors and
    parameters stay. The loss is exact, gradients are not."""

    name: ClassVar[str] = "compress-activations"
    effect: ClassVar[Effect] = Effect.LOSSY
    requires: ClassVar[frozenset[Fact]] = frozenset()
    provides: ClassVar[frozenset[Fact]] = frozenset()
    invalidates: ClassVar[frozenset[Fact]] = frozenset()
    libraries: ClassVar[tuple[str, ...]] = ("torch",)

    bits: Literal[8, 4] = 8
    block_size: int = Field(256, ge=16, description="values that share a scale")
    minimum_elements: int = Field(4096, ge=0, description="smaller tensors stay as they are")

    def run(self, model: Training, ctx: PassContext) -> Result[Training]:
        from megacompile.training import Compression
        from megacompile.training.activations import activation_memory
        from megacompile.training.saved import count_saved

        training = ctx.needs_training(self.name)
        if model.recipe.compression is not None:
            raise PassError(
                what="activations are compressed already", remedy="write compress-activations once"
            )
        if model.recipe.offload is not None:
            raise PassError(
                what="activations are offloaded already",
                cause="one tensor is stored in one way",
                remedy="leave out 'compress-activations' or 'offload-activations'",
            )
        choice = Compression(
            bits=self.bits, block_size=self.block_size, minimum_elements=self.minimum_elements
        )
        batch = next(training.batches())
        before = training.step(model)
        step = training.step(model, model.recipe.edited(compression=choice))
        packed, kept = count_saved(before, batch, choice)
        sites = Sites("saved tensor", packed + sum(kept.values()), packed)
        sites.skipped = [(f"{count} tensors", reason) for reason, count in kept.items()]
        one = activation_memory(before, batch).peak
        other = activation_memory(step, batch).peak
        notes = [f"activation memory {other / 1e6:.1f} MB, {other / one:.2f} of what it was"]
        if other > one:
            notes.append(
                "compression needs more memory than it saves here: its temporaries are "
                "larger than what is saved"
            )
        return Result(model.with_recipe(step.recipe), sites, notes)
