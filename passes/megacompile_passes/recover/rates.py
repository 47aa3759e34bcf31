"""Learning rates of `recover`: their schedule, and the test that finds the first one."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from megacompile.errors import PassError
from megacompile.training.schedule import Cosine, RangeTest, range_test, set_rate
from megacompile_passes.recover.options import Recover
from megacompile_passes.recover.stepper import Stepper


def schedule_of(options: Recover[Any, Any], steps: int) -> Callable[[int], float]:
    """What the rate is multiplied by in step 0, 1, …"""
    if options.schedule == "constant":
        return lambda step: min(1.0, (step + 1) / (options.warmup + 1))
    return Cosine(steps, options.periods, options.floor, options.warmup).factor


def tested_rate(stepper: Stepper, step: Callable[[], float], steps: int) -> RangeTest | None:
    """Find the rate on the student itself, and put everything back; None if no loss fell.

    `step` trains one step with the stepper and returns its loss.
    """
    module, sampler = stepper.student.module, stepper.sampler.state_dict()
    weights = {name: one.detach().clone() for name, one in module.state_dict().items()}
    masking, random = stepper.masking.get_state(), torch.get_rng_state()

    def loss_at(rate: float) -> float:
        set_rate(stepper.optimizer, rate)
        try:
            return step()
        except PassError:
            return math.inf

    found = range_test(loss_at, steps)
    module.load_state_dict(weights)
    stepper.sampler.load_state_dict(sampler)
    stepper.masking.set_state(masking)
    torch.set_rng_state(random)
    stepper.optimizer = stepper.new_optimizer()
    return found
