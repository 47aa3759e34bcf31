"""Which saved tensors compression takes, counted on a real piece of a batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import torch

from megacompile.training.compression import Compressor, View
from megacompile.training.recipe import Compression
from megacompile.training.step import TrainingStep


def count_saved(
    step: TrainingStep, batch: Mapping[str, torch.Tensor], choice: Compression
) -> tuple[int, dict[str, int]]:
    """How many saved tensors are compressed, and how many are not, by reason."""
    compressor = Compressor(choice, step.module)
    packed, kept = 0, Counter[str]()

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal packed
        reason = compressor.objection(tensor)
        if reason is None and not isinstance(compressor.pack(tensor), View):
            reason = "has an infinity or NaN"
        if reason is None:
            packed += 1
        else:
            kept[reason] += 1
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        step.compute_loss(step.first_piece(batch))
    return packed, dict(kept)
