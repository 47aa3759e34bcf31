"""Looks at a student: as it will answer, by the loss of held-out samples or by a metric."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from megacompile.errors import PassError, did_you_mean
from megacompile.plan import Metrics
from megacompile.training.precision import mixed
from megacompile_passes.recover.lesson import Lesson
from megacompile_passes.recover.options import Recover
from megacompile_passes.recover.students import Batch, Student


@dataclass(frozen=True)
class Monitor:
    """What `monitor` names. `measure()` is the user's metric of the student as it is (None: there
    is none), `validate()` that of `validate_with`; `looking` wraps whatever must be different
    while the student is only looked at. `held_out` are numbers of samples, batch by batch."""

    options: Recover[Any, Any]
    student: Student
    lesson: Lesson
    held_out: Sequence[list[int]]
    batch_of: Callable[[list[int]], Batch]
    measure: Callable[[], Metrics] | None
    validate: Callable[[], Metrics] | None
    looking: Callable[[], contextlib.AbstractContextManager[None]]
    device: str

    @property
    def name(self) -> str:
        """What the report calls it."""
        return "held-out loss" if self.options.monitor == "loss" else self.options.monitor

    def value(self) -> tuple[float, bool]:
        """How good the student is now, and whether higher is better.

        Raises:
            PassError: `monitor` names no metric.
        """
        if self.options.monitor == "loss":
            return self.held_out_loss(), False
        source = self.validate or self.measure
        assert source is not None  # the planner has seen to it
        with self._as_answering():
            found = source()
        if self.options.monitor not in found:
            raise PassError(
                what=f"`monitor` names '{self.options.monitor}', which is no metric",
                expected="loss, " + ", ".join(found),
                remedy=did_you_mean(self.options.monitor, found),
            )
        chosen = found[self.options.monitor]
        return float(chosen["value"]), bool(chosen["higher_is_better"])

    def measured(self) -> Metrics:
        """The user's metric of the student as it is; empty if there is none."""
        if self.measure is None:
            return {}
        with self._as_answering():
            return self.measure()

    def held_out_loss(self) -> float:
        """The mean loss of the samples that are not trained on."""
        total = count = 0.0
        with self._as_answering(), mixed(self.options.autocast, self.device):
            for numbers in self.held_out:
                loss, _ = self.lesson.losses(self.student, self.batch_of(numbers))
                total += float(loss) * len(numbers)
                count += len(numbers)
        return total / count

    @contextlib.contextmanager
    def _as_answering(self) -> Iterator[None]:
        """The student as it will answer: no dropout, no batch statistics, no new ranges."""
        module = self.student.module
        flags = [(one, one.training) for one in module.modules()]
        for one, _ in flags:
            one.training = False
        try:
            with torch.no_grad(), self.looking():
                yield
        finally:
            for one, flag in flags:
                one.training = flag
