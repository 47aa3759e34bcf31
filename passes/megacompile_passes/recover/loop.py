"""The training run of `recover`: steps, looks at the monitor, checkpoints, best weights.

It goes on from its own checkpoints after an interruption, and ends with the best weights it saw.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from typing import Any

import torch

from megacompile.plan import Metrics, PassContext, RecoveryRecord
from megacompile.training.batches import to_device
from megacompile.training.checkpoints import Checkpoints
from megacompile.training.samples import Sampler, Samples
from megacompile.training.schedule import set_rate
from megacompile_passes.recover.data import divided, pieces_of
from megacompile_passes.recover.lesson import Lesson
from megacompile_passes.recover.monitor import Monitor
from megacompile_passes.recover.options import Recover
from megacompile_passes.recover.parameters import (
    frozen_names,
    trained_parameters,
    without_gradient,
)
from megacompile_passes.recover.rates import schedule_of, tested_rate
from megacompile_passes.recover.state import RunState
from megacompile_passes.recover.stepper import Stepper
from megacompile_passes.recover.students import Student

LOOKS = 10


class Recovery:
    """One run. `measure()` is the user's metric of the student as it is (None: there is none);
    `looking` wraps whatever must be different while the student is only looked at."""

    def __init__(
        self,
        options: Recover[Any, Any],
        student: Student,
        lesson: Lesson,
        samples: Samples,
        ctx: PassContext,
        measure: Callable[[], Metrics] | None,
        validate: Callable[[], Metrics] | None,
        batch_size: int,
        looking: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
        device: str = "cpu",
    ) -> None:
        self.options, self.student, self.samples, self.ctx = options, student, samples, ctx

        def batch_of(numbers: list[int]) -> dict[str, torch.Tensor]:
            return to_device(samples.take(numbers), device)

        training, held_out = divided(samples, options, ctx.seed)
        sampler = Sampler(training, batch_size, ctx.seed, options.sampling == "loss-weighted")
        per_epoch = math.ceil(sampler.batches_per_epoch / options.accumulate)
        self.steps = options.steps or max(1, math.ceil((options.epochs or 1) * per_epoch))
        self.check_every = options.check_every or max(1, self.steps // LOOKS)
        self.frozen = frozen_names(student.module, options.freeze, student.prefix)
        self.parameters = trained_parameters(student.module, self.frozen)
        self.stepper = Stepper(
            options, student, lesson, self.parameters, sampler, batch_of, ctx.seed, device
        )
        self.monitor = Monitor(
            options,
            student,
            lesson,
            pieces_of(held_out, batch_size),
            batch_of,
            measure,
            validate,
            looking,
            device,
        )
        self.state = RunState(float(options.optimizer.options.lr))

    def run(self) -> RecoveryRecord:
        """Train; the student holds the best weights afterwards.

        Raises:
            PassError: the loss isn't finite, or `monitor` names no metric. DataError: batches
                that don't fit. ModelError: every checkpoint of an interrupted run is damaged.
        """
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            torch.manual_seed(self.ctx.seed)
            checkpoints = self._resume()
            if self.state.step == 0:
                self._test_rate()
                self.state.before = self.monitor.measured()
                self._look()
            self._train(checkpoints)
            assert self.state.best is not None
            self.student.module.load_state_dict(self.state.best)
            return self._record(self.monitor.measured())

    def _resume(self) -> Checkpoints | None:
        if self.ctx.resume is None:
            return None
        checkpoints = Checkpoints(self.ctx.resume)
        found = checkpoints.latest()
        if found is not None:
            self.stepper.restore(found.state)
            self.state = RunState.restored(found.state)
            note = f": {found.note}" if found.note else ""
            self.state.notes.append(f"continued after step {found.number}{note}")
        return checkpoints

    def _test_rate(self) -> None:
        steps = self.options.lr_range_test
        if steps is None:
            return
        found = tested_rate(self.stepper, self._step, steps)
        if found is None:
            self.state.notes.append(
                f"the learning-rate range test saw no loss fall in {steps} steps: "
                f"{self.state.rate:.2g} stays"
            )
            return
        self.state.rate = found.rate
        self.state.notes.append(
            f"learning rate {found.rate:.2g} by a range test of {len(found.rates)} steps"
        )

    def _train(self, checkpoints: Checkpoints | None) -> None:
        kept = time.monotonic()
        schedule = schedule_of(self.options, self.steps)
        while self.state.step < self.steps and not self._out_of_patience():
            start = time.monotonic()
            set_rate(self.stepper.optimizer, self.state.rate * schedule(self.state.step))
            loss = self._step()
            self.state.losses.append(loss)
            self.state.step += 1
            last = self.state.step == self.steps
            if last or self.state.step % self.check_every == 0:
                self._look()
            self.state.seconds += time.monotonic() - start
            self.ctx.advance(self.state.step, self.steps, self._note(loss))
            late = time.monotonic() - kept > self.options.checkpoint_seconds
            if checkpoints is not None and not last and late:
                checkpoints.save(self.state.step, {**self.stepper.kept(), **self.state.kept()})
                kept = time.monotonic()

    def _step(self) -> float:
        loss = self.stepper.step(self.state.step + 1)
        if self.state.step == 0 and (names := without_gradient(self.student.module)):
            shown = ", ".join(names[:3]) + (" …" if len(names) > 3 else "")
            self.state.notes.append(f"{len(names)} parameters get no gradient and stay: {shown}")
        return loss

    def _look(self) -> None:
        value, higher_is_better = self.monitor.value()
        self.state.look(value, higher_is_better, self.student.module)

    def _out_of_patience(self) -> bool:
        patience = self.options.patience
        return patience is not None and self.state.without_better >= patience

    def _note(self, loss: float) -> str:
        look = self.state.looks[-1]
        return f"loss {loss:.4g}, {self.monitor.name} {look.value:.4g} after {look.step}"

    def _record(self, after: Metrics) -> RecoveryRecord:
        state = self.state
        if self._out_of_patience():
            state.notes.append(
                f"stopped after {state.step} of {self.steps} steps: "
                f"{state.without_better} looks without a better {self.monitor.name}"
            )
        if self.options.monitor != "loss" and self.monitor.validate is None:
            state.notes.append(
                f"the weights were chosen by {self.options.monitor} on the data that "
                "also judges them: read it as an upper end"
            )
        return state.record(
            after,
            monitor=self.monitor.name,
            planned_steps=self.steps,
            samples=len(self.samples),
            trained_parameters=sum(p.numel() for p in self.parameters),
        )
