"""`checkpoint` of a compiled step: the partitioner chooses what is computed again, within a
memory budget of its own; which budget gives the wanted memory is measured."""

from __future__ import annotations

from megacompile.errors import PassError
from megacompile.forms import Training
from megacompile.passbase import Result, Sites
from megacompile.training.activations import activation_memory
from megacompile.training.context import TrainingContext
from megacompile.training.recipe import Recipe

STEPS = 4  # each compiles the step once: to a sixteenth of the range


def partitioned(
    model: Training, training: TrainingContext, memory: float | None
) -> Result[Training]:
    """The largest of the partitioner's budgets whose measured memory is within `memory`.

    Raises:
        PassError: blocks were named, which a compiled graph doesn't have; or no budget fits.
    """
    if memory is None:
        raise PassError(what="a compiled step has no blocks to checkpoint",
                        expected="memory: SHARE, for which the partitioner chooses",
                        remedy="write 'checkpoint' before 'compile', or use `memory`")  # fmt: skip
    batch = next(training.batches())

    def measured(recipe: Recipe) -> int:
        return activation_memory(training.step(model, recipe), batch).peak

    plain = measured(Recipe(ties=model.recipe.ties))
    tried: dict[float, int] = {}
    low, high = 0.0, 1.0
    tried[0.0] = measured(_with_budget(model.recipe, 0.0))
    if tried[0.0] > memory * plain:
        raise PassError(what="the memory budget can't be met by the partitioner",
                        expected=f"memory: {memory:g}",
                        got=f"{tried[0.0] / plain:.3f} at its lowest budget",
                        remedy="allow that much, or write 'checkpoint' before 'compile'",
                        )  # fmt: skip
    best = 0.0
    for _ in range(STEPS):
        middle = (low + high) / 2
        tried[middle] = measured(_with_budget(model.recipe, middle))
        if tried[middle] <= memory * plain:
            low = best = middle
        else:
            high = middle
    sites = Sites("compiled step")
    sites.change()
    notes = [f"partitioner's budget {b:g}: {size / plain:.3f} of the plain step's activation "
             "memory" for b, size in sorted(tried.items())]  # fmt: skip
    return Result(model.with_recipe(_with_budget(model.recipe, best)), sites, notes)


def _with_budget(recipe: Recipe, budget: float) -> Recipe:
    assert recipe.compile is not None
    values = recipe.compile.model_copy(update={"activation_memory_budget": budget})
    return recipe.edited(compile=values)
