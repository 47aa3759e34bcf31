"""Wall time of a step."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from megacompile.measure.instruments.base import StepRun


class Timing:
    """Notes the seconds in the step's record."""

    @contextmanager
    def around(self, run: StepRun) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            run.record.seconds = round(time.perf_counter() - start, 3)
