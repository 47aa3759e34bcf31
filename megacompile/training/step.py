"""A training step out of a module and a recipe: what a passes' decisions come to.

The order in which decisions are applied is fixed, and each has its reason (the order is
torchtitan's, too): ties first, since everything after counts parameters; checkpoints before
compilation, so that the compiler sees what is computed again; compilation before sharding, whose
hooks a graph can't hold; the optimizer last, over the parameters that are left.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from megacompile.errors import DataError, did_you_mean
from megacompile.models import Binding, Signature
from megacompile.spec import Train
from megacompile.training import distribution
from megacompile.training.batches import split, to_device
from megacompile.training.checkpointing import apply_checkpoints
from megacompile.training.compilation import compiled, compiler_settings
from megacompile.training.loading import Batch
from megacompile.training.loss import as_scalar
from megacompile.training.optimizers import make_optimizer
from megacompile.training.precision import mixed, widened
from megacompile.training.recipe import Recipe, Scaler
from megacompile.training.ties import apply_ties


@dataclass(frozen=True)
class StepResult:
    """One optimizer step. `grad_norm` is of all gradients before clipping; a skipped step
    overflowed and left the parameters alone."""

    loss: float
    grad_norm: float
    skipped: bool = False


class TrainingStep:
    """A module ready to be trained: forward, loss, backward, and the optimizer's update.

    The module given is changed (ties, wrapped forwards, training mode) and from now on the
    step's own. `step` does it all; a loop of one's own calls `compute_loss` on each piece of a
    batch, `backward` on the loss, and `update` once.
    """

    def __init__(
        self,
        module: nn.Module,
        recipe: Recipe,
        train: Train,
        *,
        signature: Signature,
        binding: Binding,
        loss: Any,
        seed: int = 0,
        device: str = "cpu",
        reproducible: bool = False,
    ) -> None:
        """Build in order. `reproducible` makes compiled code draw eager's random numbers.

        Raises:
            ModelError: the recipe names what the module doesn't have.
        """
        self.recipe, self.train, self.signature, self.binding = recipe, train, signature, binding
        self.loss_function, self.device, self.seed = loss, device, seed
        self.reproducible = reproducible
        self.skipped = 0
        self.module = module.to(device).train()
        apply_ties(self.module, recipe.ties)
        apply_checkpoints(self.module, recipe.checkpoints, self._mixed if recipe.autocast else None)
        self._forward_loss: Any = compiled(self._eager_forward_loss, self.module, recipe.compile)
        self.model: nn.Module = distribution.distribute(self.module, recipe.distribute, device)
        self.optimizer = make_optimizer(self.module, train)
        self.scaler = _make_scaler(recipe.scaler, device)

    def step(self, batch: Mapping[str, torch.Tensor]) -> StepResult:
        """One optimizer step over a whole batch (all samples of it, in `accumulate` pieces).

        Raises:
            ModelError: the loss isn't a scalar tensor. DataError: the batch lacks an input, or
                doesn't divide by the accumulation.
        """
        loss = self.gather(batch)
        norm, skipped = self.update()
        return StepResult(loss, norm, skipped)

    def gather(self, batch: Mapping[str, torch.Tensor]) -> float:
        """The mean loss over a whole batch; parameters hold its (scaled) gradients afterwards."""
        pieces = split(distribution.own_part(batch, self.recipe.distribute), self.train.accumulate)
        self.optimizer.zero_grad(set_to_none=True)
        total = torch.zeros((), device=self.device)
        for number, piece in enumerate(pieces):
            with distribution.synchronised(self.model, number == len(pieces) - 1):
                loss = self.compute_loss(piece)
                self.backward(loss / len(pieces))
            total += loss.detach().float() / len(pieces)
        return float(distribution.mean(total))

    def compute_loss(self, piece: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Forward and loss of one piece of a batch, as the recipe says."""
        with self._saved_tensors(), self._compiler():
            loss = self._forward_loss(to_device(piece, self.device))
        return as_scalar(loss, self.train.loss)

    def first_piece(self, batch: Mapping[str, torch.Tensor]) -> Batch:
        """The first of the pieces that a batch is cut into, where the model is: to measure on."""
        return to_device(split(batch, self.train.accumulate)[0], self.device)

    def backward(self, loss: torch.Tensor) -> None:
        """Add a loss's gradients, scaled if the recipe has a scaler."""
        with self._compiler():
            (self.scaler.scale(loss) if self.scaler else loss).backward()

    def update(self) -> tuple[float, bool]:
        """Unscale, clip, and take the optimizer's step; the gradients' norm, and whether the
        step was skipped because they overflowed."""
        if self.scaler is None:
            norm = self._clip()
            self.optimizer.step()
            return norm, False
        self.scaler.unscale_(self.optimizer)  # clipping must see the true gradients
        norm = self._clip()
        before = self.scaler.get_scale()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        skipped = self.scaler.get_scale() < before
        assert self.recipe.scaler is not None
        low, high = self.recipe.scaler.minimum, self.recipe.scaler.maximum
        kept = min(max(self.scaler.get_scale(), low), high)
        if kept != self.scaler.get_scale():
            self.scaler.update(kept)
        self.skipped += skipped
        return norm, skipped

    def parameters(self) -> dict[str, nn.Parameter]:
        """Trained parameters by name, tied ones once."""
        return {n: p for n, p in self.module.named_parameters() if p.requires_grad}

    def gradients(self) -> dict[str, torch.Tensor]:
        """True gradients in float32 by name, after `gather` and before `update`."""
        scale = self.scaler.get_scale() if self.scaler else 1.0
        found = {}
        for name, one in self.parameters().items():
            if one.grad is not None:
                found[name] = distribution.whole(one.grad.detach()).float() / scale
        return found

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next step depends on: module, optimizer, scaler, random state; of
        what is sharded over several processes, this one's part."""
        return {
            "module": distribution.local(dict(self.module.state_dict())),
            "optimizer": distribution.local(self.optimizer.state_dict()),
            "scaler": self.scaler.state_dict() if self.scaler else {},
            "skipped": self.skipped,
            "random": torch.get_rng_state(),
            "cuda_random": torch.cuda.get_rng_state_all() if self.device != "cpu" else [],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` gave, in as many processes."""
        if distribution.is_sharded(self.recipe.distribute):
            distribution.fill_shards(self.module, state["module"])
        else:
            self.module.load_state_dict(state["module"])
        self.optimizer.load_state_dict(distribution.sharded(self.optimizer, state["optimizer"]))
        if self.scaler and state["scaler"]:
            self.scaler.load_state_dict(state["scaler"])
        self.skipped = int(state["skipped"])
        torch.set_rng_state(state["random"].cpu())
        if state["cuda_random"] and self.device != "cpu":
            torch.cuda.set_rng_state_all(list(state["cuda_random"]))

    def _eager_forward_loss(self, piece: Batch) -> Any:
        args, kwargs = self.arguments(piece)
        with self._mixed():
            outputs = self.model(*args, **kwargs)
        if self.recipe.autocast is not None:
            outputs = widened(outputs)
        return self.loss_function(outputs, piece)

    def arguments(self, piece: Batch) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """A batch's entries as the arguments of `forward`; an optional input may be missing.

        Raises:
            DataError: the batch lacks an input.
        """
        inputs = self.signature.tensors
        lacking = [n for n, one in inputs.items() if n not in piece and not one.optional]
        if lacking:
            raise DataError(
                what=f"the batch has no entry '{lacking[0]}'",
                where="train.batches",
                expected=", ".join(inputs),
                got=", ".join(piece),
                remedy=did_you_mean(lacking[0], piece),
            )
        arguments = self.signature.arguments(lambda name: piece.get(name))
        left_out = {n for n in inputs if n not in piece}
        return self.binding.split({n: v for n, v in arguments.items() if n not in left_out})

    def _mixed(self) -> contextlib.AbstractContextManager[None]:
        return mixed(self.recipe.autocast, self.device)

    @contextlib.contextmanager
    def _saved_tensors(self) -> Iterator[None]:
        """What is saved for the backward pass is compressed or moved away while it waits."""
        with contextlib.ExitStack() as stack:
            if self.recipe.offload is not None:
                from megacompile.training.offloading import offloading

                stack.enter_context(offloading(self.recipe.offload, self.module))
            if self.recipe.compression is not None:
                from megacompile.training.compression import compressing

                stack.enter_context(compressing(self.recipe.compression, self.module))
            yield

    def _compiler(self) -> contextlib.AbstractContextManager[None]:
        return compiler_settings(self.recipe.compile, self.reproducible)

    def _clip(self) -> float:
        parameters = [p for p in self.module.parameters() if p.grad is not None]
        limit = self.train.clip_norm
        norm = nn.utils.clip_grad_norm_(parameters, limit if limit else float("inf"))
        return float(distribution.whole(norm))  # of shards each process sees a part


def _make_scaler(choice: Scaler | None, device: str) -> torch.amp.GradScaler | None:
    if choice is None:
        return None
    return torch.amp.GradScaler(
        device, init_scale=choice.initial, growth_interval=choice.growth_interval
    )
