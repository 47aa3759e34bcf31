"""The form of a model that is to be trained: a module with the recipe of its step."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from megacompile.models import Binding, Eager, Feeds, Signature, TorchForm
from megacompile.training.context import Origin
from megacompile.training.files import load_training, save_training
from megacompile.training.loss import load_loss
from megacompile.training.recipe import Recipe

if TYPE_CHECKING:
    import torch

    from megacompile.training.step import TrainingStep


class Training(TorchForm):
    """A module to be trained, with the recipe that says how its step is made.

    The module is in evaluation mode and already has the recipe's ties; everything else in the
    recipe is applied when a step is made. Passes edit the recipe; the module stays as it is.
    """

    name = "Training"

    def __init__(
        self,
        module: torch.nn.Module,
        signature: Signature,
        binding: Binding,
        recipe: Recipe,
        origin: Origin,
    ) -> None:
        self.module, self.signature, self.binding = module, signature, binding
        self.recipe, self.origin = recipe, origin

    def run(self, feeds: Feeds) -> Feeds:
        return Eager(self.module, self.signature, self.binding).run(feeds)

    def with_recipe(self, recipe: Recipe) -> Training:
        """The same module under another recipe, whose ties must be the same."""
        return Training(self.module, self.signature, self.binding, recipe, self.origin)

    def step(
        self, recipe: Recipe | None = None, device: str = "cpu", reproducible: bool = False
    ) -> TrainingStep:
        """A training step on a copy of the module, with the origin's seed set.

        Raises:
            ModelError, SpecError: the loss can't be found, or the recipe doesn't fit the module.
        """
        import torch

        from megacompile.models.torchmodules import copy_module
        from megacompile.training.step import TrainingStep

        train = self.origin.train
        loss = load_loss(train, self.origin.base)
        torch.manual_seed(self.origin.seed)
        return TrainingStep(
            copy_module(self.module),
            recipe or self.recipe,
            train,
            signature=self.signature,
            binding=self.binding,
            loss=loss,
            seed=self.origin.seed,
            device=device,
            reproducible=reproducible,
        )

    def save(self, folder: Path) -> None:
        save_training(folder, self.module, self.binding, self.recipe, self.origin)

    @classmethod
    def load(cls, folder: Path, signature: Signature) -> Training:
        module, binding, recipe, origin = load_training(folder)
        return cls(module, signature, binding, recipe, origin)

    def tensors(self) -> list[torch.Tensor]:
        return [*self.module.parameters(), *self.module.buffers()]
