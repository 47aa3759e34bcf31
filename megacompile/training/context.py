"""What a training pass may use besides the model: the data, the loss, and steps to measure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from megacompile.spec import Train
from megacompile.system import hooks, key_of, sources_hash
from megacompile.training.data.samples import STORED
from megacompile.training.data.stores import stamp
from megacompile.training.loss import load_loss

if TYPE_CHECKING:
    import torch

    from megacompile.training.recipe import Recipe
    from megacompile.training.step import TrainingStep


@dataclass(frozen=True)
class Origin:
    """Where a trained model comes from: what is needed to build it and its loss again.

    `base` is the folder that the references start from.
    """

    model: str
    base: Path
    train: Train
    seed: int = 0


class Steppable(Protocol):
    """What a training form is to a pass that tries steps of it."""

    def step(self, recipe: Recipe | None = None, device: str = "cpu") -> TrainingStep:
        """A step on a copy of the model, by default with the model's own recipe."""
        ...


@dataclass(frozen=True)
class TrainingContext:
    """The training part of a PassContext; `isa` names this CPU's instruction sets."""

    origin: Origin
    device: str = "cpu"
    isa: tuple[str, ...] = ()
    threads: int = 1

    @property
    def train(self) -> Train:
        """How the spec trains."""
        return self.origin.train

    def batches(self, size: int | None = None) -> Iterator[dict[str, torch.Tensor]]:
        """A fresh endless iterator, the same batches every time; `size` samples in each
        (default: `train.batch_size`)."""
        from megacompile.training.batches import Batches

        return iter(Batches(self.train, self.origin.base, self.origin.seed, size))

    def loss(self, outputs: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """The user's loss."""
        found: torch.Tensor = load_loss(self.train, self.origin.base)(outputs, batch)
        return found

    def step(self, model: Steppable, recipe: Recipe | None = None) -> TrainingStep:
        """A step on a copy of the model, seeded; by default with the model's own recipe.

        `Recipe(ties=model.recipe.ties)` gives the plain step of that model.
        """
        return model.step(recipe, self.device)


def hook_hashes(train: Train, base: Path) -> list[str]:
    """Hashes of the sources of the loss and the batches, stored ones by what tells them apart;
    nothing of the user's is imported or run."""
    found = []
    for reference in (train.loss, train.batches):
        kind, _, place = reference.partition(":")
        if kind in STORED:
            found.append(key_of(reference, stamp(kind, base / place)))
            continue
        path = hooks.locate(reference, base)[0]
        found.append(sources_hash(path) if path else reference)
    return found
