"""Optimizer steps of `recover`, and the state that they come from."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from megacompile.errors import PassError
from megacompile.training.optimizers import optimizer_of
from megacompile.training.precision import mixed
from megacompile.training.samples import Sampler
from megacompile_passes.recover.lesson import Lesson
from megacompile_passes.recover.masking import masked
from megacompile_passes.recover.options import Recover
from megacompile_passes.recover.students import Batch, Student


class Stepper:
    """Trains `parameters` of the student step by step, with batches that the sampler chooses."""

    def __init__(
        self,
        options: Recover[Any, Any],
        student: Student,
        lesson: Lesson,
        parameters: list[nn.Parameter],
        sampler: Sampler,
        batch_of: Callable[[list[int]], Batch],
        seed: int,
        device: str,
    ) -> None:
        self.options, self.student, self.lesson = options, student, lesson
        self.parameters, self.sampler, self.batch_of = parameters, sampler, batch_of
        self.device = device
        self.optimizer = self.new_optimizer()
        self.masking = torch.Generator().manual_seed(seed + 1)

    def new_optimizer(self) -> torch.optim.Optimizer:
        """The optimizer of the options, that has seen no step."""
        return optimizer_of(self.parameters, self.options.optimizer)

    def step(self, number: int) -> float:
        """One optimizer step over `accumulate` pieces, the `number`th; the mean loss.

        Raises:
            PassError: the loss isn't finite, or depends on nothing that is trained. DataError:
                a batch that doesn't fit.
        """
        pieces = self.options.accumulate
        self.optimizer.zero_grad(set_to_none=True)
        total = 0.0
        for _ in range(pieces):
            loss = self._loss()
            value = float(loss.detach())
            if not math.isfinite(value):
                raise PassError(
                    what=f"the loss is {value} in step {number} of `recover`",
                    expected="a finite number",
                    cause=f"learning rate {self.optimizer.param_groups[0]['lr']:.2g}",
                    remedy="a lower rate, `warmup`, a smaller `clip_norm`, or look at the data",
                )
            if not loss.requires_grad:
                raise PassError(
                    what="the loss of `recover` does not depend on any parameter that is trained",
                    remedy="freeze less, or learn from other outputs",
                )
            (loss / pieces).backward()
            total += value / pieces
        if self.options.clip_norm is not None:
            nn.utils.clip_grad_norm_(self.parameters, self.options.clip_norm)
        self.optimizer.step()
        return total

    def _loss(self) -> torch.Tensor:
        """The loss of the next piece; by losses, samples count as their chances make up for."""
        numbers, weights = self.sampler.next()
        batch = self.batch_of(numbers)
        if self.options.masking is not None:
            batch = masked(batch, self.options.masking, self.masking)
        with mixed(self.options.autocast, self.device):
            loss, each = self.lesson.losses(self.student, batch)
        if each is None:
            return loss
        self.sampler.learn(numbers, each)
        if not self.sampler.by_loss:
            return loss
        weighted = (each * weights.to(each)).mean()
        return loss - each.mean() + weighted

    def kept(self) -> dict[str, Any]:
        """Weights, optimizer and random states, for a checkpoint."""
        return {
            "module": self.student.module.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "sampler": self.sampler.state_dict(),
            "masking": self.masking.get_state(),
            "random": torch.get_rng_state(),
        }

    def restore(self, kept: Mapping[str, Any]) -> None:
        """Go on from what a checkpoint kept."""
        self.student.module.load_state_dict(kept["module"])
        self.optimizer.load_state_dict(kept["optimizer"])
        self.sampler.load_state_dict(kept["sampler"])
        self.masking.set_state(kept["masking"])
        torch.set_rng_state(kept["random"])
