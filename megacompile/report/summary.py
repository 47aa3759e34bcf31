"""What every view derives from a report: who won, in which order, and by how much."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from megacompile.report import format as fmt
from megacompile.report.figures import Metric
from megacompile.report.model import (
    Baseline,
    Candidate,
    ErrorRecord,
    Point,
    Report,
    Status,
    Step,
    Verdict,
)

STATUS_WORDS: dict[Status, str] = {
    "built": "built",
    "failed": "failed",
    "unavailable": "unavailable",
    "outside_budget": "outside budget",
}
VERDICT_WORDS: dict[Verdict, str] = {
    "improved": "improved",
    "no_improvement": "no improvement",
    "outside_budget": "outside budget",
    "failed": "failed",
    "built_not_executed": "built, not executed here",
}
VERDICT_SIGNS: dict[Verdict, str] = {
    "improved": "✓",
    "no_improvement": "=",
    "outside_budget": "!",
    "failed": "✗",
    "built_not_executed": "○",
}
STATUS_ORDER: dict[Status, int] = {"built": 0, "outside_budget": 1, "failed": 2, "unavailable": 3}
Z95 = 1.96


@dataclass(frozen=True)
class Entry:
    """A baseline (key A, B, …) or a candidate (key 1, 2, …) as the views list it."""

    key: str
    engine: Baseline | Candidate
    winner: bool = False

    @property
    def name(self) -> str:
        """The engine's name."""
        return self.engine.name

    @property
    def is_baseline(self) -> bool:
        """Whether it is the unchanged model."""
        return isinstance(self.engine, Baseline)

    @property
    def tone(self) -> str:
        """How the charts mark it."""
        if self.winner:
            return "winner"
        if self.is_baseline:
            return "baseline"
        return "candidate" if self.engine.status == "built" else "outside"


@dataclass(frozen=True)
class MetricChange:
    """A metric against the reference's. `margin` is half of the difference's 95 % interval."""

    name: str
    before: Metric
    after: Metric
    difference: float
    margin: float | None

    @property
    def significant(self) -> bool:
        """Beyond the sampling error; without a known sampling error, never."""
        return self.margin is not None and abs(self.difference) > self.margin

    @property
    def better(self) -> bool:
        """Whether the difference goes the metric's good way."""
        return (self.difference > 0) == self.after.higher_is_better and self.difference != 0


def status_text(engine: Baseline | Candidate) -> str:
    """The status in words; an engine that was built and could not run here says so."""
    if engine.status == "built" and not engine.executed:
        return "not executed"
    return STATUS_WORDS[engine.status]


def status_class(engine: Baseline | Candidate) -> str:
    """The style of the status: what was not executed is neither good nor bad."""
    return "waiting" if engine.status == "built" and not engine.executed else engine.status


def unexecuted(report: Report) -> list[Candidate]:
    """Candidates whose engines were built for other hardware."""
    return [one for one in report.candidates if not one.executed]


def winner(report: Report) -> Candidate | None:
    """The candidate that won."""
    return next((one for one in report.candidates if one.name == report.winner), None)


def reference(report: Report) -> Baseline | None:
    """The baseline that speed-ups are quoted against: the first."""
    return report.baselines[0] if report.baselines else None


def withheld(report: Report) -> bool:
    """Whether the A/A check forbids quoting speed-ups."""
    return report.aa_check is not None and not report.aa_check.passed


def point_at(engine: Baseline | Candidate, dims: dict[str, int]) -> Point | None:
    """The engine's figures at one benchmark point."""
    return next((point for point in engine.points if point.dims == dims), None)


def first_point(report: Report, engine: Baseline | Candidate) -> Point | None:
    """The engine's figures at the report's first benchmark point."""
    points = all_points(report)
    return point_at(engine, points[0]) if points else None


def all_points(report: Report) -> list[dict[str, int]]:
    """Every benchmark point, in the order of the baselines, then of the candidates."""
    found: list[dict[str, int]] = []
    engines: Sequence[Baseline | Candidate] = [*report.baselines, *report.candidates]
    for engine in engines:
        for point in engine.points:
            if point.dims not in found:
                found.append(point.dims)
    return found


def ordered(report: Report) -> list[Candidate]:
    """The winner, the built ones from fast to slow, then the others."""

    def rank(candidate: Candidate) -> tuple[bool, int, float, str]:
        point = first_point(report, candidate)
        latency = point.latency_ms.p50 if point else math.inf
        latency = latency if math.isfinite(latency) else math.inf
        status = STATUS_ORDER[candidate.status]
        return candidate.name != report.winner, status, latency, candidate.name

    return sorted(report.candidates, key=rank)


def letters(index: int) -> str:
    """A, B, …, Z, AA, AB, …"""
    head, last = divmod(index, 26)
    return (letters(head - 1) if head else "") + chr(ord("A") + last)


def entries(report: Report) -> list[Entry]:
    """Baselines first, then the candidates in order, each with the key that charts show."""
    baselines = [Entry(letters(at), one) for at, one in enumerate(report.baselines)]
    candidates = [
        Entry(str(at), one, winner=one.name == report.winner)
        for at, one in enumerate(ordered(report), start=1)
    ]
    return baselines + candidates


def all_steps(candidate: Candidate) -> list[Step]:
    """The passes and then the engine's own step."""
    return [*candidate.steps, *([candidate.lowering] if candidate.lowering else [])]


def last_error(candidate: Candidate) -> ErrorRecord | None:
    """The outputs' error after the last step that was verified."""
    errors = [step.error for step in all_steps(candidate) if step.error is not None]
    return errors[-1] if errors else None


def worst_cosine(candidate: Candidate) -> float | None:
    """The cosine of the worst sample at the end of the plan; none when it was not reached."""
    if candidate.status not in ("built", "outside_budget"):
        return None
    error = last_error(candidate)
    return error.cosine_min if error and fmt.present(error.cosine_min) else None


def metric_names(report: Report) -> list[str]:
    """Every metric of the report, in order of appearance."""
    engines: Sequence[Baseline | Candidate] = [*report.baselines, *report.candidates]
    return list(dict.fromkeys(name for engine in engines for name in engine.metric))


def metric_change(name: str, before: Metric, after: Metric) -> MetricChange:
    """The difference and its margin, the two samplings taken as independent."""
    margin = None
    if before.standard_error is not None and after.standard_error is not None:
        margin = Z95 * math.hypot(before.standard_error, after.standard_error)
        margin = margin if math.isfinite(margin) else None
    return MetricChange(name, before, after, after.value - before.value, margin)


def metric_changes(report: Report, candidate: Candidate) -> list[MetricChange]:
    """The candidate's metrics against those of the first baseline that has them."""
    changes = []
    for name, after in candidate.metric.items():
        before = next((one.metric[name] for one in report.baselines if name in one.metric), None)
        if before is not None:
            changes.append(metric_change(name, before, after))
    return changes


def change_text(change: MetricChange) -> str:
    """The difference in words: `−0.001 ± 0.012, within sampling error`."""
    text = fmt.signed(change.difference, 2)
    if change.margin is None:
        return f"{text}, sampling error unknown"
    verdict = "within sampling error"
    if change.significant:
        verdict = "significantly better" if change.better else "significantly worse"
    return f"{text} ± {fmt.number(change.margin, 2)}, {verdict}"


def standing(report: Report, candidate: Candidate) -> str:
    """Why a candidate did not win, in one line; empty when nothing can be said."""
    said = explanation(candidate)
    point, won = first_point(report, candidate), winner(report)
    if said or point is None or candidate is won:
        return said
    best = first_point(report, won) if won else None
    if best is not None and best.latency_ms.p50 > 0:
        ratio = fmt.times(point.latency_ms.p50 / best.latency_ms.p50)
        taken, ahead = (fmt.milliseconds(one.latency_ms.p50) for one in (point, best))
        return f"{taken} at the first point, {ratio} the winner's {ahead}"
    base = reference(report)
    if base is not None and point.speedup is not None and not point.speedup.low > 1:
        return f"not significantly faster than {base.name}: {fmt.speedup(point.speedup)}"
    return ""


def explanation(candidate: Candidate) -> str:
    """Why a candidate is out, in one line: its reason, or the gates that it failed."""
    if candidate.reason:
        return candidate.reason
    failing = [gate.name for gate in candidate.gates if not gate.passed]
    return "outside: " + ", ".join(failing) if failing else ""
