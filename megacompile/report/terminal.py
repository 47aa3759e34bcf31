"""The end of a build in the terminal: the verdict, one table, and what to do next."""

from __future__ import annotations

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from megacompile.report import format as fmt
from megacompile.report import summary
from megacompile.report.model import Baseline, Candidate, Report, Verdict
from megacompile.report.recovery import recovery_views
from megacompile.report.trained import TrainingRecord
from megacompile.report.training import comparison_rows, remarks

NAME_LENGTH = 22
NOTE_LENGTH = 300
SHOWN_ROWS = 24
SHOWN_NOTES = 10
STYLES: dict[Verdict, str] = {
    "improved": "bold green",
    "no_improvement": "bold",
    "outside_budget": "bold yellow",
    "failed": "bold red",
    "built_not_executed": "bold cyan",
}


def render_terminal(report: Report) -> RenderableType:
    """A summary that reads at 80 columns, with or without colour."""
    sign, words = summary.VERDICT_SIGNS[report.verdict], summary.VERDICT_WORDS[report.verdict]
    head = Text.assemble((f"{sign} {_flat(report.name)}: {words}", STYLES[report.verdict]))
    parts: list[RenderableType] = [head, Text(_flat(report.sentence))]
    if summary.withheld(report):
        parts.append(Text("Speed-ups are withheld: the A/A check did not pass.", style="yellow"))
    parts += [Text(f"warning: {_flat(one)}", style="yellow") for one in report.warnings[:5]]
    rest = fmt.more(len(report.warnings), 5, "warning")
    parts += [Text(rest)] if rest else []
    entries = summary.entries(report)
    if entries:
        parts += [Text(""), _table(report, entries[:SHOWN_ROWS])]
        rest = fmt.more(len(entries), SHOWN_ROWS, "engine")
        parts += [Text(rest)] if rest else []
        parts.append(Text(_caption(report), style="dim"))
    if report.training is not None:
        parts += [Text(""), _training(report.training)]
        parts += [Text(_flat(line), style="dim") for line in remarks(report.training)[:SHOWN_NOTES]]
    for view in recovery_views(report)[:SHOWN_NOTES]:
        for name, _, before, after in view.rows[:2]:
            line = f"{_flat(view.name)}: recovery took {_flat(name)} from {before} to {after}"
            parts.append(Text(line))
    notes = _notes(report)
    if notes:
        parts += [Text(""), *notes[:SHOWN_NOTES]]
        rest = fmt.more(len(notes), SHOWN_NOTES, "note")
        parts += [Text(rest)] if rest else []
    return Group(*parts)


def _table(report: Report, entries: list[summary.Entry]) -> Table:
    names = summary.metric_names(report)[:1]
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    table.add_column("candidate", overflow="fold", max_width=NAME_LENGTH)
    table.add_column("status")
    table.add_column("p50", justify="right", no_wrap=True)
    table.add_column("speed-up, 95 %", justify="right", no_wrap=True)
    for name in names:
        table.add_column(Text(fmt.clipped(_flat(name), 14)), justify="right", no_wrap=True)
    table.add_column("size", justify="right", no_wrap=True)
    for entry in entries:
        point = summary.first_point(report, entry.engine)
        cells = [
            fmt.clipped(_flat(entry.name), NAME_LENGTH),
            _status(entry),
            fmt.milliseconds(point.latency_ms.p50 if point else None),
            fmt.speedup(point.speedup if point else None),
            *(_metric(entry.engine, name) for name in names),
            fmt.size(entry.engine.size_bytes),
        ]
        style = "bold green" if entry.winner else "" if entry.engine.status == "built" else "dim"
        table.add_row(*map(Text, cells), style=style)
    return table


def _training(record: TrainingRecord) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    table.add_column("step", overflow="fold")
    for name in ("plain", "optimised", "ratio"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in comparison_rows(record):
        table.add_row(*map(Text, row))
    return table


def _status(entry: summary.Entry) -> str:
    if entry.winner:
        return "winner"
    if entry.is_baseline and entry.engine.status == "built" and entry.engine.executed:
        return "baseline"
    if entry.engine.status == "outside_budget":
        return "outside"  # 80 columns are narrow; the note below says of what
    return summary.status_text(entry.engine)


def _metric(engine: Baseline | Candidate, name: str) -> str:
    one = engine.metric.get(name)
    return fmt.number(one.value if one else None, 4)


def _caption(report: Report) -> str:
    points = summary.all_points(report)
    if not points:
        if summary.unexecuted(report):
            return "Nothing was timed: these engines are for other hardware than this machine's."
        return "Nothing was measured."
    base = summary.reference(report)
    against = f", speed-up against {_flat(base.name)}" if base else ", no baseline"
    return f"At {_flat(fmt.dims(points[0]))}{against}."


def _notes(report: Report) -> list[RenderableType]:
    notes: list[RenderableType] = []
    for one in summary.ordered(report):
        reason = summary.explanation(one)
        if not reason:
            continue
        notes.append(Text(f"{_flat(one.name)}: {fmt.clipped(_flat(reason), NOTE_LENGTH)}"))
        if one.remedy:
            remedy = Text(f"to do: {fmt.clipped(_flat(one.remedy), NOTE_LENGTH)}", style="dim")
            notes.append(Padding(remedy, (0, 0, 0, 2)))
    return notes


def _flat(value: str) -> str:
    """One line, without control characters that a terminal would act on."""
    return "".join(c for c in " ".join(value.split()) if c.isprintable())
