"""Compute activations again in the backward pass: of named blocks, of every k-th, or within a
memory budget, for which blocks are measured and the cheapest set is solved for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from megacompile.errors import PassError
from megacompile.plan import Effect, Fact, Pass, PassContext, Result, Sites, select
from megacompile.training import Recipe, Training, Way


class CheckpointBlocks(Pass[Training, Training]):
    """Non-reentrant checkpoints: names, hooks, random and autocast state are kept."""

    name: ClassVar[str] = "checkpoint"
    effect: ClassVar[Effect] = Effect.EXACT
    requires: ClassVar[frozenset[Fact]] = frozenset()
    provides: ClassVar[frozenset[Fact]] = frozenset()
    invalidates: ClassVar[frozenset[Fact]] = frozenset()
    libraries: ClassVar[tuple[str, ...]] = ("torch", "scipy")

    blocks: str | list[str] | None = Field(
        None, description="names of modules (globs); the outermost of those that match"
    )
    every: int | None = Field(
        None, ge=1, description="of every kind of repeated block, each so many-th; 1: all of them"
    )
    memory: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="the share of the plain step's activation memory that the "
        "step may take: blocks are measured, and the cheapest set that fits is chosen",
    )
    policy: Literal["all", "keep-matmul"] | None = Field(
        None,
        description="all: keep a block's inputs alone; keep-matmul: keep the results of "
        "matrix products too, and compute only the rest again; default: with `memory` what is "
        "cheapest for each block, else all",
    )

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        given = [n for n in ("blocks", "every", "memory") if getattr(self, n) is not None]
        if len(given) != 1:
            got = " and ".join(given) or "none"
            raise ValueError(f"one of `blocks`, `every` and `memory` is needed; got {got}")
        return self

    def run(self, model: Training, ctx: PassContext) -> Result[Training]:
        from megacompile_passes.training.checkpoint.budget import within_budget
        from megacompile_passes.training.checkpoint.candidates import free, kinds_of_blocks
        from megacompile_passes.training.checkpoint.compiled import partitioned
        from megacompile_passes.training.checkpoint.recipes import costs_of, with_checkpoints

        training = ctx.needs_training(self.name)
        _refuse_stored_elsewhere(model.recipe)
        if model.recipe.compile is not None:
            return partitioned(model, training, self.memory)
        kinds = kinds_of_blocks(model, training)
        if self.memory is not None:
            return within_budget(model, training, kinds, self.memory, self.policy)
        sites = Sites("block")
        chosen = free(model, self._wanted(model, kinds), sites)
        ways = [Way(name, self.policy == "keep-matmul") for name in chosen]
        why = "named in the spec" if self.blocks else f"every {self.every}"
        costs = costs_of(model, training, ways, why)
        for _ in chosen:
            sites.change()
        recipe = with_checkpoints(model.recipe, ways).edited(costs=costs)
        return Result(model.with_recipe(recipe), sites, [f"checkpointed: {', '.join(chosen)}"])

    def _wanted(self, model: Training, kinds: Sequence[Sequence[str]]) -> list[str]:
        """The blocks that `blocks` names, or each so many-th of a kind."""
        if self.every is not None:
            if not kinds:
                raise PassError(
                    what="no repeated blocks found",
                    expected="modules with the same operators, wired alike",
                    remedy="name them: blocks: [name, name]",
                )
            return [name for names in kinds for name in names[:: self.every]]
        assert self.blocks is not None
        names = [n for n, _ in model.module.named_modules(remove_duplicate=False) if n]
        selectors = [self.blocks] if isinstance(self.blocks, str) else self.blocks
        found = select(selectors, names, "blocks")
        return [
            n for n in names if n in found and not any(n.startswith(f"{other}.") for other in found)
        ]


def _refuse_stored_elsewhere(recipe: Recipe) -> None:
    before = {
        "compress-activations": recipe.compression,
        "offload-activations": recipe.offload,
    }
    for other, value in before.items():
        if value is not None:
            raise PassError(
                what=f"'{other}' comes before 'checkpoint'",
                cause="what is stored elsewhere can't be measured by block",
                remedy=f"write 'checkpoint' before '{other}'",
            )
