"""What a recovery trains on: samples held out of it, and random entries replaced."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import torch

from megacompile.errors import DataError, did_you_mean
from megacompile.training.samples import Samples
from megacompile_passes.recover.options import Masking, Recover

HELD_OUT_MOST = 256  # samples: more would take longer than it tells


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
    for value in choice.keep:
        chosen &= tensor != value
    return {
        **batch,
        choice.input: torch.where(
            chosen, torch.as_tensor(choice.value, dtype=tensor.dtype, device=tensor.device), tensor
        ),
    }


def divided(
    samples: Samples, options: Recover[Any, Any], seed: int
) -> tuple[list[list[int]], list[list[int]]]:
    """Numbers to train on and held-out ones, by groups of equal shapes."""
    if options.monitor != "loss":
        return samples.groups, []
    generator = torch.Generator().manual_seed(seed)
    total = len(samples)
    if total < 2:
        raise DataError(
            what=f"{samples.label} has one sample: none can be held out", expected="two or more"
        )
    if options.sampling == "pieces":
        return _divided_pieces(samples, options.held_out, generator)
    wanted = min(HELD_OUT_MOST, max(1, round(total * options.held_out)), total - 1)
    held = set(torch.randperm(total, generator=generator)[:wanted].tolist())
    numbers = sorted(itertools.chain.from_iterable(samples.groups))
    chosen = {number for at, number in enumerate(numbers) if at in held}
    training = [[n for n in group if n not in chosen] for group in samples.groups]
    out = [[n for n in group if n in chosen] for group in samples.groups]
    return [g for g in training if g], [g for g in out if g]


def _divided_pieces(
    samples: Samples, share: float, generator: torch.Generator
) -> tuple[list[list[int]], list[list[int]]]:
    """Whole pieces to train on, and held-out ones."""
    count = len(samples.groups)
    if count < 2:
        raise DataError(
            what=f"{samples.label} has one piece: none can be held out", expected="two or more"
        )
    wanted = min(max(1, round(count * share)), count - 1)
    held = set(torch.randperm(count, generator=generator)[:wanted].tolist())
    return (
        [group for at, group in enumerate(samples.groups) if at not in held],
        [group for at, group in enumerate(samples.groups) if at in held],
    )
