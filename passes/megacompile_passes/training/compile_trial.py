"""A compiled step tried on one batch: what was compiled, and whether it keeps a memory budget."""

from __future__ import annotations

from typing import Any

import torch._dynamo

from megacompile.errors import PassError
from megacompile.models import quiet
from megacompile.training import Compile, Training, TrainingContext
from megacompile.training.activations import activation_memory
from megacompile.training.figures import compile_counters

FITS = 1.1  # a budget is the partitioner's estimate: so much above it is still kept


def try_step(training: TrainingContext, model: Training) -> tuple[dict[str, Any], int]:
    """Compile by running one batch; what the compiler counted, and the activations' peak."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    torch._dynamo.utils.clear_compilation_metrics()
    step = training.step(model)
    batch = next(training.batches())
    try:
        with quiet():
            peak = activation_memory(step, batch).peak
    except Exception as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        raise PassError(
            what="torch.compile fails on the step",
            cause=f"{type(error).__name__}: {lines[0] if lines else ''}",
            remedy="use what: blocks, or leave 'compile' out",
        ) from error
    return compile_counters(), peak


def budget_notes(
    training: TrainingContext, model: Training, choice: Compile, budget: float, measured: int
) -> list[str]:
    """The budget against what was measured with it, with the compiler's own choice beside it.

    Raises:
        PassError: more memory is needed than without a budget.
    """

    def measure(other: float | None) -> int:
        values = choice.model_copy(update={"activation_memory_budget": other})
        return try_step(training, model.with_recipe(model.recipe.edited(compile=values)))[1]

    without = measure(None)
    text = f"activations {measured / 1e6:.2f} MB with the budget, {without / 1e6:.2f} without"
    if measured > without:
        raise PassError(
            what=f"a memory budget of {budget:g} needs more memory than none",
            got=text,
            remedy="leave `memory` out, or use `checkpoint` with a budget",
        )
    if measured <= FITS * budget * without:
        return [text]
    notes = [
        f"{text}: the budget of {budget:g} is not reached; the compiler counts "
        "kept tensors, and what is measured has temporary ones besides"
    ]
    milder = round((1 + budget) / 2, 2)
    needs = measure(milder)
    if needs < measured:
        notes.append(f"less budget needs more memory here: {milder:g} needs {needs / 1e6:.2f} MB")
    return notes
