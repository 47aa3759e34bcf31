"""Compute activations again in the backward pass: of named blocks, of every k-th, or within a
memory budget, for which blocks are measured and the cheapest set is solved for."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import Field, model_validator

from megacompile.errors import PassError
from megacompile.plan import Effect, Fact, Pass, PassContext, Result, Sites, select
from megacompile.training import Training
from megacompile_passes.modules.blocks import nested, repeated_blocks
from megacompile_passes.modules.wiring import record_wiring

if TYPE_CHECKING:
    from megacompile.training import BlockCost, Policy, Problem, Recipe, TrainingContext, Way

# Solve, measure, correct the budget by what was measured: it converges at once or not at all.
TRIES = 4


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
            raise ValueError(
                "one of `blocks`, `every` and `memory` is needed; got "
                + (" and ".join(given) or "none")
            )
        return self

    def run(self, model: Training, ctx: PassContext) -> Result[Training]:
        training = ctx.needs_training(self.name)
        recipe = model.recipe
        for other, value in (
            ("compress-activations", recipe.compression),
            ("offload-activations", recipe.offload),
        ):
            if value is not None:
                raise PassError(
                    what=f"'{other}' comes before 'checkpoint'",
                    cause="what is stored elsewhere can't be measured by block",
                    remedy=f"write 'checkpoint' before '{other}'",
                )
        if recipe.compile is not None:
            from megacompile_passes.training.checkpoint.compiled import partitioned

            return partitioned(model, training, self.memory)
        sites = Sites("block")
        kinds = _kinds(model, training)
        if self.memory is not None:
            return self._within(model, training, kinds, sites)
        chosen = self._named(model, kinds)
        chosen = _free(model, chosen, sites)
        ways = _ways(chosen, self.policy or "all")
        made = _with_checkpoints(recipe, ways)
        why = "named in the spec" if self.blocks else f"every {self.every}"
        made = made.edited(costs=_costs(model, training, ways, why))
        for _ in chosen:
            sites.change()
        return Result(model.with_recipe(made), sites, [f"checkpointed: {', '.join(chosen)}"])

    def _named(self, model: Training, kinds: Sequence[Sequence[str]]) -> list[str]:
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
        wanted = [self.blocks] if isinstance(self.blocks, str) else self.blocks
        found = select(wanted, names, "blocks")
        return [
            n for n in names if n in found and not any(n.startswith(f"{other}.") for other in found)
        ]

    def _within(
        self,
        model: Training,
        training: TrainingContext,
        kinds: Sequence[Sequence[str]],
        sites: Sites,
    ) -> Result[Training]:
        """The cheapest set whose measured memory is within the budget."""
        from megacompile.training import cheapest_within, lowest_peak
        from megacompile.training.costs import block_costs, measure

        assert self.memory is not None
        plain = _measured(model, training, _plain(model.recipe))
        budget = int(self.memory * plain)
        candidates = _free(model, _candidates(model, kinds), sites)
        batch = next(training.batches())
        problem = _limited(measure(training.step(model), candidates, batch), self.policy)
        target, notes = budget, []
        for _ in range(TRIES):
            found = cheapest_within(problem, target)
            if found is None:
                break
            made = _with_checkpoints(model.recipe, found.ways)
            real = _measured(model, training, made)
            notes.append(
                f"predicted {found.peak / plain:.3f} of the plain step's activation "
                f"memory, measured {real / plain:.3f}"
            )
            if real <= budget:
                if not found.blocks:
                    raise PassError(
                        what="the step is within the memory budget already",
                        expected=f"more than {self.memory:.3f} of the plain step's",
                        got=f"{real / plain:.3f}",
                        remedy="leave 'checkpoint' out, or lower `memory`",
                    )
                why = (
                    f"cheapest set within {self.memory:g} of the activations, "
                    f"{found.milliseconds:.0f} ms in all"
                )
                made = made.edited(costs=block_costs(problem, found.ways, why))
                for name in candidates:
                    if name in found.blocks:
                        sites.change()
                    else:
                        sites.skip(name, "it fits without")
                return Result(model.with_recipe(made), sites, notes)
            target -= max(real - budget, 1)
        lowest = lowest_peak(problem)
        real = _measured(model, training, _with_checkpoints(model.recipe, lowest.ways))
        raise PassError(
            what="the memory budget can't be met by checkpoints",
            expected=f"memory: {self.memory:g} ({budget / 1e6:.1f} MB of activations)",
            got=f"the least is memory: {_up(real / plain):.3f} ({real / 1e6:.1f} MB)",
            cause=_worst(problem, lowest.ways),
            remedy="allow that much, use a smaller batch with `accumulate`, or add "
            "`compress-activations`",
        )


def _kinds(model: Training, training: TrainingContext) -> list[tuple[str, ...]]:
    """Repeated blocks by their structure, with the first piece of real data."""
    from megacompile.training.batches import split

    step = training.step(model, _plain(model.recipe))
    piece = split(next(training.batches()), step.train.accumulate)[0]
    args, kwargs = step.arguments(piece)
    module = step.module.eval().cpu()
    return repeated_blocks(module, record_wiring(module, lambda: module(*args, **kwargs)))


def _candidates(model: Training, kinds: Sequence[Sequence[str]]) -> list[str]:
    """Repeated blocks and the modules of several parts inside them; else all such modules."""
    modules = {
        n: m
        for n, m in model.module.named_modules()
        if n and any(m.children()) and type(m).forward is not _no_forward()
    }
    blocks = [name for names in kinds for name in names]
    if not blocks:
        return list(modules)
    inside = [n for n in modules if any(n.startswith(f"{b}.") for b in blocks)]
    return [n for n, _ in model.module.named_modules() if n in blocks or n in inside]


def _no_forward() -> object:
    """The forward of modules that only hold others (ModuleList)."""
    from torch import nn

    return nn.ModuleList.forward


def _free(model: Training, names: Sequence[str], sites: Sites) -> list[str]:
    """Those that can be checkpointed: not by a pass before, and one of two names of a module."""
    wrapped = [one.module for one in model.recipe.checkpoints]
    seen: set[int] = set()
    free = []
    for name in names:
        one = model.module.get_submodule(name)
        if before := next((w for w in wrapped if nested(w, name)), None):
            sites.skip(name, f"'{before}' is checkpointed already")
        elif id(one) in seen:
            sites.skip(name, "another name of a module that is checkpointed")
        else:
            seen.add(id(one))
            free.append(name)
    return free


def _ways(names: Sequence[str], policy: Policy) -> list[Way]:
    from megacompile.training import Way

    return [Way(name, policy == "keep-matmul") for name in names]


def _limited(problem: Problem, policy: Policy | None) -> Problem:
    """With the ways that the option allows."""
    return dataclasses.replace(
        problem,
        milliseconds={} if policy == "keep-matmul" else problem.milliseconds,
        selective={} if policy == "all" else problem.selective,
    )


def _with_checkpoints(recipe: Recipe, ways: Sequence[Way]) -> Recipe:
    from megacompile.training import Checkpoint

    more = tuple(
        Checkpoint(module=way.block, policy="keep-matmul" if way.keeps_products else "all")
        for way in ways
    )
    return recipe.edited(checkpoints=(*recipe.checkpoints, *more))


def _plain(recipe: Recipe) -> Recipe:
    from megacompile.training import Recipe as Plain

    return Plain(ties=recipe.ties)


def _measured(model: Training, training: TrainingContext, recipe: Recipe) -> int:
    """Activation memory of a step in bytes."""
    from megacompile.training.activations import activation_memory

    return activation_memory(training.step(model, recipe), next(training.batches())).peak


def _costs(
    model: Training, training: TrainingContext, chosen: Sequence[Way], why: str
) -> tuple[BlockCost, ...]:
    from megacompile.training.costs import block_costs, measure

    names = [way.block for way in chosen]
    problem = measure(training.step(model), names, next(training.batches()))
    return block_costs(problem, chosen, why)


def _worst(problem: Problem, chosen: Sequence[Way]) -> str:
    from megacompile.training import worst_moment

    segment, alive = worst_moment(problem, chosen)
    inside = "/".join(problem.segments[segment].blocks)
    place = f"inside '{inside}'" if inside else "outside all blocks"
    own = problem.segments[segment].peak
    return (
        f"the worst moment is {place}: {own / 1e6:.1f} MB of its own on top of "
        f"{(alive - own) / 1e6:.1f} MB that earlier parts keep"
    )


def _up(share: float) -> float:
    """Rounded up in the third digit: what is named can be asked for."""
    return math.ceil(share * 1000) / 1000
