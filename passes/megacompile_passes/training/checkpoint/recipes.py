"""Recipes of a step with and without checkpoints, and what they need as measured."""

from __future__ import annotations

from collections.abc import Sequence

from megacompile.training import BlockCost, Checkpoint, Recipe, Training, TrainingContext, Way
from megacompile.training.activations import activation_memory
from megacompile.training.costs import block_costs, measure


def plain(recipe: Recipe) -> Recipe:
    """The step as it is without any pass; what is shared stays shared."""
    return Recipe(ties=recipe.ties)


def with_checkpoints(recipe: Recipe, ways: Sequence[Way]) -> Recipe:
    """A recipe with further blocks checkpointed."""
    more = tuple(
        Checkpoint(module=way.block, policy="keep-matmul" if way.keeps_products else "all")
        for way in ways
    )
    return recipe.edited(checkpoints=(*recipe.checkpoints, *more))


def measured(model: Training, training: TrainingContext, recipe: Recipe) -> int:
    """Activation memory of a step in bytes."""
    return activation_memory(training.step(model, recipe), next(training.batches())).peak


def costs_of(
    model: Training, training: TrainingContext, chosen: Sequence[Way], why: str
) -> tuple[BlockCost, ...]:
    """What the chosen blocks keep and cost, measured in the step as it was before."""
    names = [way.block for way in chosen]
    problem = measure(training.step(model), names, next(training.batches()))
    return block_costs(problem, chosen, why)
