"""The contract of an instrument."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from megacompile.models import Form
from megacompile.plan import Effect
from megacompile.report import Step


@dataclass
class StepRun:
    """One step while it runs: the record that instruments fill, and the form after it.

    `effect` and `dtype` are the weakest promise of all steps so far. `after` is None until the
    step is through; an instrument that needs it acts when its context ends.
    """

    number: int
    record: Step
    effect: Effect
    dtype: str
    after: Form | None = None
    emulated: bool = False


class Instrument(Protocol):
    """Something that watches steps."""

    def around(self, run: StepRun) -> AbstractContextManager[None]:
        """Entered before a step and left after it, also when it fails."""
        ...
