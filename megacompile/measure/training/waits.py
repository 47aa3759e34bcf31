"""How long the steps of a run waited for their data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from megacompile.training.batches import Batches


@dataclass
class Waits:
    """Seconds that the steps of a run took and waited for their batches.

    The first step after a start is left out: its wait is the opening of the data and the start of
    the workers (`started`), and its time is a compiler's.
    """

    started: float = 0.0
    waited: float = 0.0
    taken: float = 0.0
    steps: int = 0

    def add(self, batches: Batches, taken: float, starting: bool) -> None:
        """One step after its batch; `batches.waited` is used up."""
        if starting:
            self.started = batches.started
        else:
            self.waited += batches.waited
            self.taken += taken
            self.steps += 1
        batches.waited = 0.0

    def figures(self) -> dict[str, float | None]:
        """The share of a step that is waiting, and milliseconds; None after a single step."""
        found: dict[str, float | None] = {"waiting": None, "waiting_ms": None}
        if self.steps:
            found["waiting"] = self.waited / max(self.waited + self.taken, 1e-9)
            found["waiting_ms"] = 1000 * self.waited / self.steps
        return {**found, "data_start_ms": 1000 * self.started}
