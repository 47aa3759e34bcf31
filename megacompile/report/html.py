"""`report.html`: one file that works offline, without scripts and without anything fetched."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from megacompile.report import charts, summary
from megacompile.report import format as fmt
from megacompile.report.charts import Chart
from megacompile.report.model import Candidate, Gate, Report
from megacompile.report.recovery import recovery_views
from megacompile.report.tradeoff import tradeoff
from megacompile.report.trained import TrainingRecord
from megacompile.report.training import training_view
from megacompile.report.waterfall import source_line, waterfall

if TYPE_CHECKING:
    from jinja2 import Environment

OPEN_POINTS = 2
SHOWN_POINTS = 12
SHOWN_WATERFALLS = 40
SHOWN_OTHERS = 40
SHOWN_WARNINGS = 30
SHOWN_FILES = 40
SPEC_LENGTH = 40_000


@dataclass(frozen=True)
class Figure:
    """One of the winner's key figures."""

    label: str
    value: str
    note: str


@dataclass(frozen=True)
class PointView:
    """The charts of one benchmark point."""

    label: str
    charts: list[Chart]
    spread: Chart | None


@dataclass(frozen=True)
class GateTable:
    """Every gate of every candidate; a candidate without a gate has none in that column."""

    names: list[str]
    rows: list[tuple[summary.Entry, list[Gate | None]]]


def render_html(report: Report) -> str:
    """The whole page as text."""
    return _templates().get_template("report.html.j2").render(_context(report))


@cache
def _templates() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    templates = Environment(
        loader=PackageLoader("megacompile.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.globals.update(fmt=fmt, summary=summary)
    return templates


def _context(report: Report) -> dict[str, Any]:
    entries = summary.entries(report)
    candidates = [entry for entry in entries if not entry.is_baseline]
    others = [entry for entry in candidates if not entry.winner and _explained(report, entry)]
    waterfalls = [
        (entry, waterfall(report, entry.engine))
        for entry in candidates[:SHOWN_WATERFALLS]
        if isinstance(entry.engine, Candidate)
    ]
    points = [point_view(report, dims) for dims in summary.all_points(report)[:SHOWN_POINTS]]
    return {
        "report": report,
        "badge": summary.VERDICT_WORDS[report.verdict],
        "sign": summary.VERDICT_SIGNS[report.verdict],
        "unexecuted": summary.unexecuted(report)[:SHOWN_OTHERS],
        "figures": key_figures(report),
        "withheld": summary.withheld(report),
        "warnings": report.warnings[:SHOWN_WARNINGS],
        "warnings_rest": fmt.more(len(report.warnings), SHOWN_WARNINGS, "warning"),
        "entries": entries,
        "metric_names": summary.metric_names(report),
        "others": others[:SHOWN_OTHERS],
        "others_rest": fmt.more(len(others), SHOWN_OTHERS, "candidate"),
        "points": [point for point in points if point.charts],
        "points_rest": fmt.more(len(summary.all_points(report)), SHOWN_POINTS, "point"),
        "spreads": [(point.label, point.spread) for point in points if point.spread],
        "open_points": OPEN_POINTS,
        "source": report.source and source_line(report.source),
        "waterfalls": waterfalls,
        "waterfalls_rest": fmt.more(len(candidates), SHOWN_WATERFALLS, "candidate"),
        "training": training_view(report),
        "recoveries": recovery_views(report)[:SHOWN_WATERFALLS],
        "tradeoff": tradeoff(report),
        "gates": gate_table(report),
        "rates": charts.ceiling_chart(report.ceiling) if report.ceiling else None,
        "times": charts.build_time_chart(report.build_seconds) if report.build_seconds else None,
        "files": list(report.provenance.files.items())[:SHOWN_FILES],
        "files_rest": fmt.more(len(report.provenance.files), SHOWN_FILES, "file"),
        "spec": fmt.clipped(json.dumps(report.spec, indent=2, ensure_ascii=False), SPEC_LENGTH),
    }


def key_figures(report: Report) -> list[Figure]:
    """The winner's speed-up, latency, metrics, size and memory; nothing without a winner."""
    winner = summary.winner(report)
    if winner is None:
        return []
    if winner.training is not None:
        return _training_figures(winner.training)
    base = summary.reference(report)
    figures = _speed_figures(report, winner)
    for change in summary.metric_changes(report, winner):
        value = fmt.number(change.after.value, 4)
        note = f"was {fmt.number(change.before.value, 4)}; {summary.change_text(change)}"
        figures.append(Figure(change.name, value, note))
    cosine = summary.worst_cosine(winner)
    if not winner.metric and cosine is not None:
        note = "worst sample against the original; no metric was given"
        figures.append(Figure("Cosine", fmt.trimmed(cosine, 6), note))
    if winner.size_bytes is not None:
        origin = base or report.source
        note = _against(winner.size_bytes, origin.size_bytes if origin else None, fmt.size)
        figures.append(Figure("Size on disk", fmt.size(winner.size_bytes), note))
    point = summary.first_point(report, winner)
    if point and fmt.present(point.peak_memory_mb):
        at_base = summary.first_point(report, base) if base else None
        before = at_base.peak_memory_mb if at_base else None
        note = _against(point.peak_memory_mb, before, fmt.megabytes)
        figures.append(Figure("Peak memory", fmt.megabytes(point.peak_memory_mb), note))
    return figures


def _training_figures(record: TrainingRecord) -> list[Figure]:
    """What the optimised step needs beside the plain one."""
    plain, mine, batch = record.plain, record.optimised, record.largest_batch
    memory = [fmt.megabytes(one.peak_memory_mb) for one in (plain, mine)]
    activations = [fmt.megabytes(one.peak_activation_mb) for one in (plain, mine)]
    figures = [
        Figure("Peak memory", fmt.times(record.memory_ratio), " to ".join(memory)),
        Figure("Activations", fmt.times(record.activation_ratio), " to ".join(activations)),
    ]
    if record.step_time_ratio is None:
        figures.append(Figure("Step time", "withheld", "the A/A check did not pass"))
    else:
        note = f"95 % interval {fmt.bounds(record.step_time_ratio)}"
        figures.append(Figure("Step time", fmt.times(record.step_time_ratio.median), note))
    if batch is not None:
        note = f"was {batch.plain:,}, in the plain step's memory"
        figures.append(Figure("Largest batch", f"{batch.optimised:,}", note))
    note = f"cosine to the plain step's: {record.gradient.worst}"
    figures.append(Figure("Worst gradient", fmt.trimmed(record.gradient.cosine_min, 6), note))
    return figures


def _speed_figures(report: Report, winner: Candidate) -> list[Figure]:
    base, point = summary.reference(report), summary.first_point(report, winner)
    if point is None:
        return []
    figures = []
    if point.speedup is not None and base is not None:
        note = f"95 % interval {fmt.bounds(point.speedup)} against {base.name}"
        if winner.versus_best_baseline is not None and len(report.baselines) > 1:
            note += f"; {fmt.speedup(winner.versus_best_baseline)} against the best baseline"
        figures.append(Figure("Speed-up", fmt.times(point.speedup.median), note))
    elif summary.withheld(report):
        figures.append(Figure("Speed-up", "withheld", "the A/A check did not pass"))
    note = f"p95 {fmt.milliseconds(point.latency_ms.p95)}, at {fmt.dims(point.dims)}"
    figures.append(Figure("Median latency", fmt.milliseconds(point.latency_ms.p50), note))
    return figures


def point_view(report: Report, dims: dict[str, int]) -> PointView:
    """Latency, speed-up and spread at one benchmark point."""
    made = [charts.latency_chart(report, dims), charts.speedup_chart(report, dims)]
    shown = [chart for chart in made if chart is not None]
    return PointView(fmt.dims(dims), shown, charts.distribution_chart(report, dims))


def gate_table(report: Report) -> GateTable | None:
    """Candidates down, gates across."""
    judged = [(e, e.engine) for e in summary.entries(report) if isinstance(e.engine, Candidate)]
    names = list(dict.fromkeys(gate.name for _, one in judged for gate in one.gates))
    if not names:
        return None
    rows = []
    for entry, one in judged:
        if one.gates:
            found = {gate.name: gate for gate in one.gates}
            rows.append((entry, [found.get(name) for name in names]))
    return GateTable(names, rows)


def _explained(report: Report, entry: summary.Entry) -> bool:
    one = entry.engine
    if not isinstance(one, Candidate):
        return False
    return bool(one.status != "built" or summary.standing(report, one) or one.notes)


def _against(after: float | None, before: float | None, text: Any) -> str:
    if not after or not before:
        return ""
    change = fmt.signed((after / before - 1) * 100, 2)
    return f"was {text(before)}; {change} %"
