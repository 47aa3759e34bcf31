"""What `recover` brought back: metrics before and after, and the monitored value over the run."""

from __future__ import annotations

import math
from dataclasses import dataclass

from megacompile.report import format as fmt
from megacompile.report import svg
from megacompile.report.charts import axis
from megacompile.report.model import RecoveryRecord, Report
from megacompile.report.training import Picture

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
    return [
        RecoveryView(
            one.name,
            recovery_rows(report, one.recovery),
            recovery_line(one.recovery),
            _picture(one.recovery),
        )
        for one in report.candidates
        if one.recovery is not None
    ]


def recovery_rows(report: Report, record: RecoveryRecord) -> list[tuple[str, str, str, str]]:
    """Metric, the original's, the model's as it came to `recover`, and as it left."""
    original = report.baselines[0].metric if report.baselines else {}
    rows = [
        (
            name,
            fmt.metric(original.get(name)),
            fmt.metric(record.metric_before.get(name)),
            fmt.metric(after),
        )
        for name, after in list(record.metric_after.items())[:SHOWN_METRICS]
    ]
    if record.looks and record.monitor not in record.metric_after:
        first, best = record.looks[0].value, best_look(record)
        rows.append((record.monitor, fmt.MISSING, fmt.number(first, 4), fmt.number(best, 4)))
    return rows


def best_look(record: RecoveryRecord) -> float:
    """The monitored value of the weights that were kept."""
    return next(look.value for look in record.looks if look.step == record.best_step)


def recovery_line(record: RecoveryRecord) -> str:
    """How it was trained, in one sentence."""
    steps = f"{record.steps:,} steps"
    if record.steps != record.planned_steps:
        steps = f"{record.steps:,} of {record.planned_steps:,} steps"
    return (
        f"{record.trained_parameters:,} parameters trained for {steps} on {record.samples:,} "
        f"samples in {fmt.seconds(record.seconds)}, learning rate {record.learning_rate:.2g}; "
        f"the weights of step {record.best_step:,} have the best {record.monitor} and were "
        "kept."
    )


def _picture(record: RecoveryRecord) -> Picture | None:
    """The monitored value over the steps."""
    values = [look.value for look in record.looks if math.isfinite(look.value)]
    if len(values) < 2:
        return None
    low, high = min(values), max(values)
    span = (high - low) or 1.0
    drawn = svg.curve(
        [0.03 + 0.94 * (value - low) / span for value in values], HEIGHT, "line winner"
    )
    title = f"{record.monitor[:1].upper()}{record.monitor[1:]} over {record.steps:,} steps"
    return Picture(
        title,
        f"From {fmt.number(low, 4)} at the bottom to {fmt.number(high, 4)} at the top.",
        svg.drawing(
            title, f"from {fmt.number(values[0], 4)} to {fmt.number(values[-1], 4)}", HEIGHT, drawn
        ),
        axis(svg.Scale(0.0, float(record.looks[-1].step)), str, "Step"),
        [("winner", "kept", f"{fmt.number(best_look(record), 4)} after step {record.best_step:,}")],
    )
