"""What differs between two reports, as data: `diff.py` renders it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from megacompile.report.figures import Record
from megacompile.report.model import Status, Verdict

Direction = Literal["better", "worse", "changed"]
Side = Literal["before", "after"]
Quantity = Literal["speed-up", "latency", "metric", "size", "parameters", "peak memory"]


class Change(Record):
    """One figure that differs. `significant` by the rule that `basis` states."""

    quantity: Quantity
    label: str
    before: float
    after: float
    before_text: str
    after_text: str
    direction: Direction
    significant: bool
    basis: str


class GateChange(Record):
    """A gate that passes in one report and fails, or is missing, in the other."""

    name: str
    before: bool | None
    after: bool | None


class EngineDiff(Record):
    """A candidate or a baseline, matched by name."""

    name: str
    presence: Literal["both", "only before", "only after"] = "both"
    status_before: Status | None = None
    status_after: Status | None = None
    precision_before: str | None = None
    precision_after: str | None = None
    changes: list[Change] = Field(default_factory=list)
    gates: list[GateChange] = Field(default_factory=list)

    @property
    def differs(self) -> bool:
        """Whether there is anything to tell."""
        moved = self.presence != "both" or self.status_before != self.status_after
        moved = moved or self.precision_before != self.precision_after
        return moved or bool(self.changes) or bool(self.gates)


class Difference(Record):
    """A value that differs at a dotted path; null where there is none."""

    path: str
    before: str | None
    after: str | None


class ReportDiff(Record):
    """Everything that differs between two reports."""

    name_before: str
    name_after: str
    created_before: str
    created_after: str
    verdict_before: Verdict
    verdict_after: Verdict
    winner_before: str | None
    winner_after: str | None
    machine_before: str
    machine_after: str
    same_machine: bool
    reference_before: str | None = None
    reference_after: str | None = None
    withheld: list[Side] = Field(default_factory=list)
    winner: EngineDiff | None = None
    candidates: list[EngineDiff] = Field(default_factory=list)
    baselines: list[EngineDiff] = Field(default_factory=list)
    spec: list[Difference] = Field(default_factory=list)
    versions: list[Difference] = Field(default_factory=list)

    @property
    def worse(self) -> list[Change]:
        """What got significantly worse, over all candidates."""
        return self._significant("worse")

    @property
    def better(self) -> list[Change]:
        """What got significantly better, over all candidates."""
        return self._significant("better")

    def _significant(self, direction: Direction) -> list[Change]:
        changes = [change for one in self.candidates for change in one.changes]
        return [one for one in changes if one.significant and one.direction == direction]
