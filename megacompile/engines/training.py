"""A training step as data: weights, the recipe, and the user's own source."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from megacompile.models import Feeds, Signature
from megacompile.plan import (
    Availability,
    Backend,
    Fact,
    Lowered,
    Machine,
    Runner,
    Say,
    Traits,
    silent,
)
from megacompile.training import Training


class TrainingBackend(Backend):
    name: ClassVar[str] = "training"
    accepts: ClassVar[tuple[str, ...]] = ("Training",)
    libraries: ClassVar[tuple[str, ...]] = ("torch", "safetensors")

    def traits(self) -> Traits:
        return Traits(backend=self.name)

    def availability(self, target: Machine) -> Availability:
        return Availability()

    def compile(
        self,
        model: Training,
        target: Machine,
        facts: frozenset[Fact],
        out: Path,
        progress: Say = silent,
    ) -> Lowered:
        from megacompile.training import carry_source

        model.save(out)
        notes = carry_source(out)
        return Lowered(model.recipe.autocast or "float32", notes=notes)

    def load(self, out: Path, target: Machine, signature: Signature) -> Runner:
        import torch

        torch.set_num_threads(target.threads)
        return TrainedRunner(Training.load(out, signature))


class TrainedRunner(Runner):
    """The module's forward in evaluation mode, in float32."""

    def __init__(self, form: Training) -> None:
        self.form = form

    def run(self, feeds: Feeds) -> Feeds:
        return self.form.run(feeds)
