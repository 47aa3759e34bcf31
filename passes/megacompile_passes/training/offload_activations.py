"""Let what is saved for the backward pass wait in the host's memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from pydantic import Field

from megacompile.errors import PassError
from megacompile.plan import Effect, Fact, Pass, PassContext, Result, Sites, select
from megacompile.training import Training


class OffloadActivations(Pass[Training, Training]):
    """Pinned host memory, copied both ways beside the computation (CUDA)."""

    name: ClassVar[str] = "offload-activations"
    effect: ClassVar[Effect] = Effect.EXACT
    requires: ClassVar[frozenset[Fact]] = frozenset()
    provides: ClassVar[frozenset[Fact]] = frozenset()
    invalidates: ClassVar[frozenset[Fact]] = frozenset()
    libraries: ClassVar[tuple[str, ...]] = ("torch",)

    blocks: str | list[str] | None = Field(
        None, description="names of modules (globs) whose saved tensors move; all by default"
    )
    minimum_elements: int = Field(65536, ge=0, description="smaller tensors stay on the device")

    def unsupported(self, device: str, isa: Sequence[str]) -> PassError | None:
        if device != "cpu":
            return None
        return PassError(
            what="activations of a CPU are in the host's memory already",
            got="target.device: cpu",
            expected="target.device: cuda",
            remedy="use `compress-activations` or `checkpoint`",
        )

    def run(self, model: Training, ctx: PassContext) -> Result[Training]:
        from megacompile.training import Offload

        training = ctx.needs_training(self.name)
        lack = self.unsupported(training.device, training.isa)
        if lack is not None:
            raise lack
        if model.recipe.offload is not None or model.recipe.compression is not None:
            other = "offloaded" if model.recipe.offload is not None else "compressed"
            raise PassError(
                what=f"activations are {other} already",
                cause="one tensor is stored in one way",
                remedy="write one of 'compress-activations' and 'offload-activations', once",
            )
        modules: tuple[str, ...] = ()
        names = [n for n, _ in model.module.named_modules() if n]
        if self.blocks is not None:
            wanted = [self.blocks] if isinstance(self.blocks, str) else self.blocks
            found = select(wanted, names, "blocks")
            modules = tuple(
                n for n in names if n in found and not any(n.startswith(f"{o}.") for o in found)
            )
        choice = Offload(minimum_elements=self.minimum_elements, modules=modules)
        sites = Sites("module")
        for _ in modules or ("the model",):
            sites.change()
        return Result(model.with_recipe(model.recipe.edited(offload=choice)), sites)
