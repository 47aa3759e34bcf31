"""Options of `share-parameters`, and the groups of blocks that they mean in a module."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import Field, model_validator

from megacompile.errors import PassError
from megacompile.plan import Effect, Fact, In, Out, Pass, Sites

if TYPE_CHECKING:
    import torch

    from megacompile_passes.modules.blocks import Group, Wirings


class ShareParameters(Pass[In, Out]):
    """Several tensors of a module become one."""

    name: ClassVar[str] = "share-parameters"
    effect: ClassVar[Effect] = Effect.LOSSY
    requires: ClassVar[frozenset[Fact]] = frozenset()
    provides: ClassVar[frozenset[Fact]] = frozenset()
    invalidates: ClassVar[frozenset[Fact]] = frozenset()

    mode: Literal["identical", "group"] = Field(
        description="identical: tensors of equal value become one; group: repeated blocks share "
        "one set of parameters"
    )
    every: int | None = Field(
        None,
        ge=2,
        description="group: so many blocks in a row share, of every kind of repeated "
        "block that the model's structure shows",
    )
    groups: list[list[str]] | None = Field(
        None, min_length=1, description="group: names (globs) of the blocks that share, per group"
    )
    init: Literal["first", "nearest", "mean", "least-squares"] = Field(
        "first",
        description="group: the shared values: the first block's, the mean of all, or by "
        "the calibration data: those of the block that keeps the model's answers nearest, or those "
        "whose answers are nearest to all blocks' own",
    )

    @model_validator(mode="after")
    def _fit_the_mode(self) -> Self:
        given = [n for n in ("every", "groups") if getattr(self, n) is not None]
        if self.mode == "group" and len(given) != 1:
            both = ", not both" if given else ""
            raise ValueError(f"mode: group needs one of `every` and `groups`{both}")
        alien = given + ["init"] * ("init" in self.model_fields_set)
        if self.mode == "identical" and alien:
            raise ValueError(f"mode: identical takes no `{alien[0]}`")
        return self

    def promised(self) -> Effect:
        return Effect.EXACT if self.mode == "identical" else Effect.LOSSY

    def needs_calibration(self) -> bool:
        return self.init in ("nearest", "least-squares")

    def _groups(self, module: torch.nn.Module, wirings: Wirings, sites: Sites) -> list[Group]:
        """Blocks that shall share, checked to be alike."""
        from megacompile_passes.modules import blocks

        if self.groups is not None:
            chosen = blocks.named_groups(module, self.groups)
        else:
            assert self.every is not None
            found = blocks.repeated_blocks(module, wirings)
            if not found:
                raise PassError(
                    what="no repeated blocks found",
                    expected="modules with the same operators, wired alike, and "
                    "parameters of the same shapes",
                    remedy="name them: groups: [[name, name]]",
                )
            chosen = [run for names in found for run in blocks.every(names, self.every)]
            shared = {name for run in chosen for name in run}
            for name in (n for names in found for n in names if n not in shared):
                sites.skip(name, "the last of its kind: nothing is left to share with")
        return [blocks.matched(module, one, wirings) for one in chosen]
