"""The samples of a recovery: those it trains on, those held out, and the first batches."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from megacompile.errors import DataError
from megacompile.plan import PassContext
from megacompile.training.samples import Sampler, Samples, open_samples
from megacompile_passes.recover.options import Recover

FIRST_BATCHES = 8  # what limits and ranges are taken from
HELD_OUT_MOST = 256  # samples: more would take longer than it tells


def open_data(options: Recover[Any, Any], ctx: PassContext) -> Samples:
    """The samples to learn from.

    Raises:
        SpecError, DataError: they can't be found or read.
    """
    reference = options.batches
    if reference is None:
        reference = ctx.needs_training(options.name).train.batches
    ctx.progress("reading the samples")
    return open_samples(
        reference, ctx.base, options.samples, "recover's batches", options.sampling == "pieces"
    )


def first_batches(
    options: Recover[Any, Any], samples: Samples, seed: int
) -> Iterator[dict[str, torch.Tensor]]:
    """A few shuffled batches to take ranges from."""
    sampler = Sampler(samples.groups, batch_size_of(options, samples), seed)
    for _ in itertools.repeat(None, min(FIRST_BATCHES, sampler.batches_per_epoch)):
        yield samples.take(sampler.next()[0])


def batch_size_of(options: Recover[Any, Any], samples: Samples) -> int:
    """Samples of one piece, at most."""
    if options.sampling == "pieces":
        return max(len(group) for group in samples.groups)
    return options.batch_size


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


def pieces_of(groups: Sequence[list[int]], size: int) -> list[list[int]]:
    """Groups of numbers in batches of at most that size."""
    return [group[at : at + size] for group in groups for at in range(0, len(group), size)]
