"""The activation memory of a step: what one piece of a batch needs beside the model's state."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from megacompile.training.memory import Live, live_memory
from megacompile.training.step import TrainingStep


def activation_memory(step: TrainingStep, batch: Mapping[str, torch.Tensor]) -> Live:
    """Live bytes of forward, loss and backward over the first piece of a batch.

    Parameters, gradients, optimizer state and the piece itself are there already and don't
    count: the piece is run once before, so that gradients have their place (and compilers are
    done). What counts are activations and everything temporary. The optimizer takes no step;
    gradients are cleared afterwards.
    """
    piece = step.first_piece(batch)

    def once() -> None:
        step.backward(step.compute_loss(piece))

    once()
    if step.recipe.compile is not None:
        once()  # the first call of compiled code compiles
    try:
        return live_memory(once, step.device)
    finally:
        step.optimizer.zero_grad(set_to_none=True)
