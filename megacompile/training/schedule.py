"""Learning rates over a run: cosine with warm restarts, and a test for where to start."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

LOWEST, HIGHEST = 1e-7, 1.0
SMOOTHING = 0.8
BLOWN_UP = 4.0


@dataclass(frozen=True)
class Cosine:
    """Cosine annealing with warm restarts (Loshchilov and Hutter, arXiv:1608.03983).

    The rate falls from the optimizer's to `floor` times it within each of `periods` equal
    periods; the first `warmup` steps rise linearly.
    """

    steps: int
    periods: int = 3
    floor: float = 0.01
    warmup: int = 0

    def factor(self, step: int) -> float:
        """What the optimizer's rate is multiplied by in step 0, 1, …"""
        if step < self.warmup:
            return (step + 1) / (self.warmup + 1)
        length = max(1, math.ceil((self.steps - self.warmup) / self.periods))
        at = ((step - self.warmup) % length) / length
        return self.floor + (1 - self.floor) * (1 + math.cos(math.pi * at)) / 2


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """One learning rate for all parameters."""
    for group in optimizer.param_groups:
        group["lr"] = rate


@dataclass(frozen=True)
class RangeTest:
    """What a range test saw: rates, smoothed losses, and the rate it suggests."""

    rates: tuple[float, ...]
    losses: tuple[float, ...]
    rate: float


def range_test(step: Callable[[float], float], steps: int) -> RangeTest | None:
    """Learning-rate range test (Smith, arXiv:1506.01186): the rate grows exponentially from 1e-7
    to 1 until the smoothed loss is four times its least value. Suggested is a tenth of the rate
    at the least loss, which lies on the slope before it. None if the loss never fell.

    `step(rate)` trains one step and returns its loss; the caller restores everything after it.
    """
    rates, losses = [], []
    smooth = 0.0
    for number, rate in enumerate(_growing(steps)):
        loss = step(rate)
        if not math.isfinite(loss):
            break
        smooth = SMOOTHING * smooth + (1 - SMOOTHING) * loss
        value = smooth / (1 - SMOOTHING ** (number + 1))
        rates.append(rate)
        losses.append(value)
        if value > BLOWN_UP * min(losses):
            break
    if not losses or _fell(losses) is None:
        return None
    at = _fell(losses)
    assert at is not None
    return RangeTest(tuple(rates), tuple(losses), rates[at] / 10)


def _growing(steps: int) -> Iterator[float]:
    ratio = (HIGHEST / LOWEST) ** (1 / max(1, steps - 1))
    return (LOWEST * ratio**number for number in range(steps))


def _fell(losses: Sequence[float]) -> int | None:
    """Where the least loss is, if it is clearly below the first."""
    at = min(range(len(losses)), key=losses.__getitem__)
    return at if losses[at] < 0.98 * losses[0] else None
