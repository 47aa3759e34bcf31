"""Bytes and unique parameters of the model after a step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from megacompile.measure.instruments.base import StepRun


class Size:
    """Notes both in the step's record."""

    @contextmanager
    def around(self, run: StepRun) -> Iterator[None]:
        yield
        if run.after is not None:
            run.record.size_bytes = run.after.size_bytes()
            run.record.parameters = run.after.parameters()
