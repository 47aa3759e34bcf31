"""Steps of a toy with some of its blocks checkpointed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from megacompile_passes.training.checkpoint.blocks import CheckpointBlocks

from megacompile.training.activations import activation_memory
from megacompile.training.form import Training
from megacompile.training.recipe import Recipe
from tests.training.toy import batches_of, make_context

BLOCKS = [f"blocks.{i}" for i in range(6)]


def run(tmp_path: Path, form: Training, **options: Any) -> Any:
    return CheckpointBlocks(**options).run(form, make_context(tmp_path, form))


def chosen(result: Any) -> list[str]:
    return [one.module for one in result.model.recipe.checkpoints]


def share(form: Training, recipe: Recipe) -> float:
    """Measured activation memory relative to the plain step's."""
    batch = next(batches_of(form))
    plain = activation_memory(form.step(Recipe(ties=form.recipe.ties)), batch).peak
    return activation_memory(form.step(recipe), batch).peak / plain
