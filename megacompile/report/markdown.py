"""`report.md`: the verdict and the figures that a reviewer needs in a pull request."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from megacompile.report import format as fmt
from megacompile.report import summary
from megacompile.report.model import Point, Report, Step
from megacompile.report.recovery import recovery_views
from megacompile.report.training import block_rows, comparison_rows, remarks

SHOWN_ROWS = 20
SHOWN_FAILING = 12
SHOWN_STEPS = 12
SHOWN_WARNINGS = 8
SHOWN_POINTS = 4
SHOWN_TEXT = 240

SPECIAL = re.compile(r"([\\`*_{}\[\]<>|#~$@!])")


def text(value: str, length: int = SHOWN_TEXT) -> str:
    """User text on one line, with nothing left that Markdown or HTML would act on."""
    flat = fmt.clipped(" ".join(value.split()), length)
    escaped = SPECIAL.sub(r"\\\1", flat.replace("&", "&amp;"))
    escaped = escaped.replace("\\<", "&lt;").replace("\\>", "&gt;")
    return escaped.replace("://", ":&#47;&#47;")


def table(head: Sequence[str], rows: Iterable[Sequence[str]], right: int) -> list[str]:
    """A table whose columns from number `right` on are aligned to the right."""
    rule = ["---" if at < right else "---:" for at in range(len(head))]
    return ["| " + " | ".join(cells) + " |" for cells in (head, rule, *rows)]


def details(title: str, lines: Sequence[str]) -> list[str]:
    """A folded part."""
    return [f"<details><summary>{title}</summary>", "", *lines, "", "</details>"]


def render_markdown(report: Report) -> str:
    """The report as a short Markdown page."""
    sign, words = summary.VERDICT_SIGNS[report.verdict], summary.VERDICT_WORDS[report.verdict]
    lines = [f"### {sign} {text(report.name)}: {words}", "", text(report.sentence, 600), ""]
    if summary.withheld(report):
        lines += [
            "> **Speed-ups are withheld:** the first baseline raced against itself and "
            "differed by more than its own interval allows.",
            "",
        ]
    for warning in report.warnings[:SHOWN_WARNINGS]:
        lines += [f"> **Warning:** {text(warning)}", ""]
    rest = fmt.more(len(report.warnings), SHOWN_WARNINGS, "warning")
    lines += [f"> {rest}", ""] if rest else []
    lines += _engines(report)
    lines += _files(report)
    lines += _training(report)
    lines += _recovered(report)
    lines += _failing(report)
    lines += _others(report)
    lines += _changed(report)
    lines += _latencies(report)
    lines += _provenance(report)
    return "\n".join(lines).rstrip() + "\n"


def _engines(report: Report) -> list[str]:
    entries = summary.entries(report)
    points = summary.all_points(report)
    if not entries:
        return ["The spec names no candidate and no baseline.", ""]
    names = summary.metric_names(report)[:2]
    head = ["engine", "status", "p50", "speed-up, 95 %", *map(text, names), "size", "memory"]
    rows = []
    for entry in entries[:SHOWN_ROWS]:
        one, point = entry.engine, summary.first_point(report, entry.engine)
        name = f"**{text(one.name)}**" if entry.winner else text(one.name)
        median = fmt.milliseconds(point.latency_ms.p50 if point else None)
        speedup = fmt.speedup(point.speedup if point else None)
        metrics = [fmt.metric(one.metric.get(metric)) for metric in names]
        memory = fmt.megabytes(point.peak_memory_mb if point else None)
        size = fmt.size(one.size_bytes)
        rows.append([name, _status(entry), median, speedup, *metrics, size, memory])
    lines = table(head, rows, 2)
    notes = [fmt.more(len(entries), SHOWN_ROWS, "engine")]
    if points:
        notes.append(f"Measured at {text(fmt.dims(points[0]))}.")
    if not report.baselines:
        notes.append("No baseline was measured, so there is no speed-up.")
    winner = summary.winner(report)
    for change in summary.metric_changes(report, winner) if winner else []:
        notes.append(f"{text(change.name)}: {summary.change_text(change)}.")
    return [*lines, "", " ".join(note for note in notes if note), ""]


def _status(entry: summary.Entry) -> str:
    if entry.winner:
        return "**winner**"
    ran = entry.engine.status == "built" and entry.engine.executed
    return "baseline" if entry.is_baseline and ran else summary.status_text(entry.engine)


def _files(report: Report) -> list[str]:
    """What was built for other hardware, file by file: the reader can't run it here either."""
    rows = [
        [text(one.name), text(name), fmt.size(size)]
        for one in summary.unexecuted(report)[:SHOWN_ROWS]
        for name, size in sorted(one.files.items())
    ]
    return [*table(["candidate", "file", "size"], rows, 2), ""] if rows else []


def _training(report: Report) -> list[str]:
    record = report.training
    if record is None:
        return []
    rows = [[text(cell) for cell in row] for row in comparison_rows(record)]
    lines = [*table(["step", "plain", "optimised", "ratio"], rows, 1), ""]
    lines += [f"- {text(line)}" for line in remarks(record)[:SHOWN_WARNINGS]]
    blocks = [[text(cell) for cell in row] for row in block_rows(record)[:SHOWN_ROWS]]
    if blocks:
        head = ["block", "keeps", "recompute", "checkpoint", "why"]
        rest = fmt.more(len(record.checkpoints), SHOWN_ROWS, "block")
        lines += ["", *details("Checkpointed blocks", [*table(head, blocks, 5), "", rest])]
    return [*lines, ""]


def _recovered(report: Report) -> list[str]:
    views = recovery_views(report)[:SHOWN_ROWS]
    rows = [[text(view.name), *map(text, row)] for view in views for row in view.rows]
    if not rows:
        return []
    head = ["recovered", "measured", "original", "before", "after"]
    lines = [f"- {text(view.name)}: {text(view.line)}" for view in views]
    return [*table(head, rows, 2), "", *lines, ""]


def _failing(report: Report) -> list[str]:
    found = []
    for one in summary.ordered(report):
        for gate in one.gates:
            if not gate.passed:
                value, limit = fmt.trimmed(gate.value, 4), fmt.trimmed(gate.limit, 4)
                note = f" ({text(gate.note)})" if gate.note else ""
                name = f"{text(one.name)}: **{text(gate.name)}**"
                found.append(f"- {name} is {value}, limit {limit}{note}")
    if not found:
        return ["All gates of the winner pass.", ""] if summary.winner(report) else []
    rest = fmt.more(len(found), SHOWN_FAILING, "gate")
    tail = [f"- {rest}"] if rest else []
    return ["**Gates that fail**", "", *found[:SHOWN_FAILING], *tail, ""]


def _others(report: Report) -> list[str]:
    lines = []
    for one in summary.ordered(report):
        reason = summary.explanation(one)
        if one.name == report.winner or one.status == "built" or not reason:
            continue
        step = f" at {text(one.failed_step)}" if one.failed_step else ""
        remedy = f" To do: {text(one.remedy)}" if one.remedy else ""
        status = summary.STATUS_WORDS[one.status]
        lines.append(f"- {text(one.name)}, {status}{step}: {text(reason).rstrip('.')}.{remedy}")
    rest = fmt.more(len(lines), SHOWN_ROWS, "candidate")
    shown = lines[:SHOWN_ROWS] + ([f"- {rest}"] if rest else [])
    return ["**Did not qualify**", "", *shown, ""] if lines else []


def _changed(report: Report) -> list[str]:
    one = summary.winner(report) or next(iter(summary.ordered(report)), None)
    if one is None or not summary.all_steps(one):
        return []
    shown = one.steps[:SHOWN_STEPS]
    steps = [*shown, *([one.lowering] if one.lowering else [])]
    rest = fmt.more(len(one.steps), len(shown), "step")
    head = ["step", "form", "sites", "size", "worst cosine", "time"]
    lines = [*table(head, map(_step, steps), 3), *(["", rest] if rest else [])]
    return details(f"What each pass did: {text(one.name)}", lines)


def _step(step: Step) -> list[str]:
    marks = [word for word, on in (("inserted", step.inserted), ("cached", step.cached)) if on]
    sites = step.sites
    return [
        text(step.pass_) + (f" ({', '.join(marks)})" if marks else ""),
        text(step.form),
        f"{sites.changed:,} of {fmt.plural(sites.matched, text(sites.kind))}" if sites else "",
        fmt.size(step.size_bytes) if step.size_bytes is not None else "",
        fmt.trimmed(step.error.cosine_min, 7) if step.error else "",
        fmt.seconds(step.seconds),
    ]


def _latencies(report: Report) -> list[str]:
    points = summary.all_points(report)
    if len(points) < 2:
        return []
    entries = [entry for entry in summary.entries(report) if entry.engine.points]
    rows = []
    for entry in entries[:SHOWN_ROWS]:
        found = [summary.point_at(entry.engine, dims) for dims in points[:SHOWN_POINTS]]
        rows.append([text(entry.name), *map(_latency, found)])
    head = ["engine", *(text(fmt.dims(dims)) for dims in points[:SHOWN_POINTS])]
    rest = fmt.more(len(entries), SHOWN_ROWS, "engine")
    left = fmt.more(len(points), SHOWN_POINTS, "point")
    omitted = f"{rest} {left}".strip()
    lines = [*table(head, rows, 1), *(["", omitted] if omitted else [])]
    return details("Latency and speed-up at every point", lines)


def _latency(point: Point | None) -> str:
    if point is None:
        return fmt.MISSING
    latency = point.latency_ms
    spread = f"{fmt.milliseconds(latency.p50)} (p95 {fmt.milliseconds(latency.p95)})"
    return spread + (f", {fmt.speedup(point.speedup)}" if point.speedup else "")


def _provenance(report: Report) -> list[str]:
    here, source = report.environment, report.provenance
    versions = ", ".join(f"{text(k)} {text(v)}" for k, v in list(here.versions.items())[:20])
    lines = [
        f"- Machine: {text(here.machine)}, {fmt.plural(here.threads, 'thread')}, "
        f"{text(here.system)}, Python {text(here.python)}",
        f"- Versions: {versions or fmt.MISSING}",
        f"- Command: {text(source.command)}, commit {text(source.commit or fmt.MISSING)}, "
        f"seed {source.seed}",
        f"- Spec: {text(source.spec_path)}, SHA-256 {text(source.spec_sha256)}",
    ]
    more = []
    if report.aa_check:
        one = report.aa_check
        word = "passed" if one.passed else "did not pass"
        low, high = fmt.number(one.low, 4), fmt.number(one.high, 4)
        more.append(f"A/A check {word}: {fmt.number(one.ratio, 4)} [{low}, {high}]")
    if report.ceiling and fmt.present(report.ceiling.reached):
        reached = fmt.percent(report.ceiling.reached, 2)
        more.append(f"the winner reaches {reached} of this machine's limit")
    if report.build_seconds:
        more.append(f"built in {fmt.seconds(report.build_seconds.total)}")
    lines += ["- " + "; ".join(more)] if more else []
    return details("Environment and provenance", lines)
