"""Random entries of a batch replaced: more inputs to learn from."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from megacompile.errors import DataError, did_you_mean
from megacompile_passes.recover.option_groups import Masking


def masked(
    batch: Mapping[str, torch.Tensor], choice: Masking, generator: torch.Generator
) -> dict[str, torch.Tensor]:
    """A batch with random entries of one input replaced.

    Raises:
        DataError: no such entry.
    """
    if choice.input not in batch:
        raise DataError(
            what=f"`masking.input` names '{choice.input}', which no batch has",
            got=", ".join(batch),
            remedy=did_you_mean(choice.input, batch),
        )
    tensor = batch[choice.input]
    chosen = torch.rand(tensor.shape, generator=generator).to(tensor.device) < choice.share
    for kept in choice.keep:
        chosen &= tensor != kept
    value = torch.as_tensor(choice.value, dtype=tensor.dtype, device=tensor.device)
    return {**batch, choice.input: torch.where(chosen, value, tensor)}
