"""`checkpoint` of a compiled step: the partitioner chooses what is computed again, within a
memory budget of its own; which budget gives the wanted memory is measured."""

from __future__ import annotations

import torch

from megacompile.errors import PassError
from megacompile.plan import Result, Sites
from megacompile.training import Recipe, Training, TrainingContext
from megacompile.training.activations import activation_memory
from megacompile_passes.training.checkpoint.recipes import plain

# From the dearest in memory down. The lowest is not zero: a graph that keeps nothing computes
# everything again at once, and needs it all at once.
BUDGETS = (0.9, 0.75, 0.5, 0.25, 0.1)


def partitioned(
    model: Training, training: TrainingContext, memory: float | None
) -> Result[Training]:
    """The largest of the partitioner's budgets whose measured memory is within `memory`.

    Raises:
        PassError: blocks were named, which a compiled graph doesn't have; `compile` has a budget
            already; or no budget fits.
    """
    assert model.recipe.compile is not None
    if model.recipe.compile.activation_memory_budget is not None:
        raise PassError(
            what="the compiled step has a memory budget already",
            got="one in 'compile' and one in 'checkpoint'",
            remedy="leave one of the two out",
        )
    if memory is None:
        raise PassError(
            what="a compiled step has no blocks to checkpoint",
            expected="memory: SHARE, for which the partitioner chooses",
            remedy="write 'checkpoint' before 'compile', or use `memory`",
        )
    batch = next(training.batches())

    def measured(recipe: Recipe) -> int:
        # Compiled code is found again by the function's code, whatever the budget is now.
        torch.compiler.reset()
        return activation_memory(training.step(model, recipe), batch).peak

    plain_bytes = measured(plain(model.recipe))
    tried: dict[float, float] = {}
    for budget in BUDGETS:
        tried[budget] = measured(_with_budget(model.recipe, budget)) / plain_bytes
        if tried[budget] <= memory:
            break
    else:
        raise PassError(
            what="the memory budget can't be met by the partitioner",
            expected=f"memory: {memory:g}",
            got=f"the least is {min(tried.values()):.3f} of the plain step's activation memory",
            remedy="allow that much, or write 'checkpoint' before 'compile'",
        )
    sites = Sites("compiled step")
    sites.change()
    notes = [
        f"partitioner's budget {one:g}: {share:.3f} of the plain step's activation memory"
        for one, share in tried.items()
    ]
    return Result(model.with_recipe(_with_budget(model.recipe, budget)), sites, notes)


def _with_budget(recipe: Recipe, budget: float) -> Recipe:
    assert recipe.compile is not None
    values = recipe.compile.model_copy(update={"activation_memory_budget": budget})
    return recipe.edited(compile=values)
