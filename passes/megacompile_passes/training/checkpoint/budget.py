"""The cheapest set of blocks to checkpoint whose measured memory is within a budget."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from megacompile.errors import PassError
from megacompile.plan import Result, Sites
from megacompile.training import (
    Policy,
    Problem,
    Training,
    TrainingContext,
    Way,
    cheapest_within,
    lowest_peak,
    worst_moment,
)
from megacompile.training.costs import block_costs, measure
from megacompile_passes.training.checkpoint.candidates import candidates, free
from megacompile_passes.training.checkpoint.recipes import measured, plain, with_checkpoints

# Solve, measure, correct the budget by what was measured: it converges at once or not at all.
TRIES = 4


def within_budget(
    model: Training,
    training: TrainingContext,
    kinds: Sequence[Sequence[str]],
    memory: float,
    policy: Policy | None,
) -> Result[Training]:
    """Checkpoints that keep the step within so much of the plain step's activation memory.

    Raises:
        PassError: the step fits without them, or no set of blocks makes it fit.
    """
    sites = Sites("block")
    plain_bytes = measured(model, training, plain(model.recipe))
    budget = int(memory * plain_bytes)
    names = free(model, candidates(model.module, kinds), sites)
    batch = next(training.batches())
    problem = _limited(measure(training.step(model), names, batch), policy)
    target, notes = budget, []
    for _ in range(TRIES):
        found = cheapest_within(problem, target)
        if found is None:
            break
        recipe = with_checkpoints(model.recipe, found.ways)
        real = measured(model, training, recipe)
        notes.append(
            f"predicted {found.peak / plain_bytes:.3f} of the plain step's activation "
            f"memory, measured {real / plain_bytes:.3f}"
        )
        if real <= budget:
            if not found.blocks:
                raise PassError(
                    what="the step is within the memory budget already",
                    expected=f"more than {memory:.3f} of the plain step's",
                    got=f"{real / plain_bytes:.3f}",
                    remedy="leave 'checkpoint' out, or lower `memory`",
                )
            why = (
                f"cheapest set within {memory:g} of the activations, "
                f"{found.milliseconds:.0f} ms in all"
            )
            recipe = recipe.edited(costs=block_costs(problem, found.ways, why))
            for name in names:
                if name in found.blocks:
                    sites.change()
                else:
                    sites.skip(name, "it fits without")
            return Result(model.with_recipe(recipe), sites, notes)
        target -= max(real - budget, 1)
    lowest = lowest_peak(problem)
    real = measured(model, training, with_checkpoints(model.recipe, lowest.ways))
    raise PassError(
        what="the memory budget can't be met by checkpoints",
        expected=f"memory: {memory:g} ({budget / 1e6:.1f} MB of activations)",
        got=f"the least is memory: {_up(real / plain_bytes):.3f} ({real / 1e6:.1f} MB)",
        cause=_worst(problem, lowest.ways),
        remedy="allow that much, use a smaller batch with `accumulate`, or add "
        "`compress-activations`",
    )


def _limited(problem: Problem, policy: Policy | None) -> Problem:
    """With the ways that the option allows."""
    return dataclasses.replace(
        problem,
        milliseconds={} if policy == "keep-matmul" else problem.milliseconds,
        selective={} if policy == "all" else problem.selective,
    )


def _worst(problem: Problem, chosen: Sequence[Way]) -> str:
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
