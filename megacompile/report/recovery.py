"""What `recover` brought back: metrics before and after, and the monitored value over the run."""

from __future__ import annotations

import math
from dataclasses import dataclass

from megacompile.report import format as fmt
from megacompile.report import svg
from megacompile.report.charts import axis
from megacompile.report.model import Report
from megacompile.report.pictures import Picture
from megacompile.report.trained import RecoveryRecord

HEIGHT = 90
SHOWN_METRICS = 8


@dataclass(frozen=True)
class RecoveryView:
    """One candidate's recovery: rows of metric, original, before, after; a line; a picture."""

    name: str
    rows: list[tuple[str, str, str, str]]
    line: str
    picture: Picture | None


def recovery_views(report: Report) -> list[RecoveryView]:
    """The views of all candidates that were recovered, in the report's order."""
    found = []
    for one in report.candidates:
        if one.recovery is not None:
            rows, line = recovery_rows(report, one.recovery), recovery_line(one.recovery)
            found.append(RecoveryView(one.name, rows, line, _picture(one.recovery)))
    return found


def recovery_rows(report: Report, record: RecoveryRecord) -> list[tuple[str, str, str, str]]:
    """Metric, the original's, the model's as it came to `recover`, and as it left."""
    original = report.baselines[0].metric if report.baselines else {}
    rows = []
    for name, after in list(record.metric_after.items())[:SHOWN_METRICS]:
        first, before = original.get(name), record.metric_before.get(name)
        rows.append((name, fmt.metric(first), fmt.metric(before), fmt.metric(after)))
    if record.looks and record.monitor not in record.metric_after:
        start, best = record.looks[0].value, best_look(record)
        rows.append((record.monitor, fmt.MISSING, fmt.number(start, 4), fmt.number(best, 4)))
    return rows


def best_look(record: RecoveryRecord) -> float:
    """The monitored value of the weights that were kept."""
    return next(look.value for look in record.looks if look.step == record.best_step)


def recovery_line(record: RecoveryRecord) -> str:
    """How it was trained, in one sentence."""
    steps = f"{record.steps:,} steps"
    if record.steps != record.planned_steps:
        steps = f"{record.steps:,} of {record.planned_steps:,} steps"
    trained = (
        f"{record.trained_parameters:,} parameters trained for {steps} on {record.samples:,} "
        f"samples in {fmt.seconds(record.seconds)}, learning rate {record.learning_rate:.2g}"
    )
    kept = f"the weights of step {record.best_step:,} have the best {record.monitor} and were kept"
    return f"{trained}; {kept}."


def _picture(record: RecoveryRecord) -> Picture | None:
    """The monitored value over the steps."""
    values = [look.value for look in record.looks if math.isfinite(look.value)]
    if len(values) < 2:
        return None
    low, high = min(values), max(values)
    span = (high - low) or 1.0
    heights = [0.03 + 0.94 * (value - low) / span for value in values]
    title = f"{record.monitor[:1].upper()}{record.monitor[1:]} over {record.steps:,} steps"
    described = f"from {fmt.number(values[0], 4)} to {fmt.number(values[-1], 4)}"
    kept = f"{fmt.number(best_look(record), 4)} after step {record.best_step:,}"
    return Picture(
        title,
        f"From {fmt.number(low, 4)} at the bottom to {fmt.number(high, 4)} at the top.",
        svg.drawing(title, described, HEIGHT, svg.curve(heights, HEIGHT, "line winner")),
        axis(svg.Scale(0.0, float(record.looks[-1].step)), str, "Step"),
        [("winner", "kept", kept)],
    )
