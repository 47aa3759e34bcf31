"""What each pass did to a candidate, step by step, as data for the page."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from markupsafe import Markup

from megacompile.report import format as fmt
from megacompile.report import svg
from megacompile.report.model import Candidate, ErrorRecord, Report, SitesRecord, Source, Step

SHOWN_STEPS = 40
SHOWN_REASONS = 6
SHOWN_SITES = 3
SHOWN_NOTES = 6
BAR_HEIGHT = 22


@dataclass(frozen=True)
class SkipLine:
    """Sites that were left for the same reason."""

    count: int
    reason: str
    sites: str


@dataclass(frozen=True)
class StepView:
    """One step of the waterfall."""

    name: str
    options: str
    form: str
    effect: str
    marks: list[str]
    sites: str
    skipped: list[SkipLine]
    skipped_rest: str
    size: Markup
    size_text: str
    parameters: str
    error: str
    error_note: str
    time: str
    notes: list[str]
    notes_rest: str


@dataclass(frozen=True)
class Waterfall:
    """A candidate's steps, capped."""

    steps: list[StepView]
    rest: str


def waterfall(report: Report, candidate: Candidate) -> Waterfall:
    """The passes in order, then the engine's own step, which is always shown."""
    shown = candidate.steps[:SHOWN_STEPS]
    every = [*shown, *([candidate.lowering] if candidate.lowering else [])]
    before = report.source.size_bytes if report.source else None
    largest = max([before or 0, *(step.size_bytes or 0 for step in every)])
    views = []
    parameters = report.source.parameters if report.source else None
    for step in every:
        lowering = step is candidate.lowering
        views.append(_view(step, before, parameters, largest, lowering))
        before, parameters = step.size_bytes or before, step.parameters or parameters
    return Waterfall(views, fmt.more(len(candidate.steps), len(shown), "step"))


def source_line(source: Source) -> str:
    """What the steps start from."""
    size, parameters = fmt.size(source.size_bytes), fmt.integer(source.parameters)
    return f"{source.form}, {size}, {parameters} parameters"


def _view(
    step: Step, before: int | None, parameters: int | None, largest: int, lowering: bool
) -> StepView:
    marks = ["lowering"] if lowering else []
    marks += ["inserted by the planner"] if step.inserted else []
    marks += ["from the cache"] if step.cached else []
    notes = list(step.notes)
    if step.cache_reason:
        notes.append(f"cache: {step.cache_reason}")
    reasons, rest = _skipped(step.sites)
    return StepView(
        name=step.pass_,
        options=", ".join(f"{key}: {value}" for key, value in step.options.items()),
        form=step.form,
        effect=step.effect,
        marks=marks,
        sites=_sites(step.sites),
        skipped=reasons,
        skipped_rest=rest,
        size=_size_bar(step, before, largest),
        size_text=_size_text(step.size_bytes, before),
        parameters=_parameters(step.parameters, parameters),
        error=_error(step.error),
        error_note="; ".join(_error_notes(step.error)),
        time=fmt.seconds(step.seconds),
        notes=notes[:SHOWN_NOTES],
        notes_rest=fmt.more(len(notes), SHOWN_NOTES, "note"),
    )


def _error(error: ErrorRecord | None) -> str:
    if error is None:
        return ""
    cosine, relative = fmt.trimmed(error.cosine_min, 7), fmt.trimmed(error.relative, 2)
    return f"cosine {cosine}, relative {relative}"


def _error_notes(error: ErrorRecord | None) -> list[str]:
    if error is None:
        return []
    notes = [f"worst: {error.worst}"] if error.worst and error.relative > 0 else []
    if error.dead_channels:
        names = ", ".join(error.dead_channels[:SHOWN_SITES])
        left = fmt.more(len(error.dead_channels), SHOWN_SITES, "channel")
        notes.append(f"dead channels: {names} {left}".strip())
    return [*notes, error.note] if error.note else notes


def _sites(sites: SitesRecord | None) -> str:
    if sites is None:
        return ""
    left = sites.matched - sites.changed
    tail = f", {left:,} left" if left > 0 else ""
    return f"{sites.changed:,} of {fmt.plural(sites.matched, sites.kind)} changed{tail}"


def _skipped(sites: SitesRecord | None) -> tuple[list[SkipLine], str]:
    if sites is None or not sites.skipped:
        return [], ""
    counts = Counter(one.reason for one in sites.skipped)
    lines = []
    for reason, count in counts.most_common(SHOWN_REASONS):
        names = [one.site for one in sites.skipped if one.reason == reason]
        text = ", ".join(names[:SHOWN_SITES])
        left = fmt.more(len(names), SHOWN_SITES, "site")
        lines.append(SkipLine(count, reason, f"{text} {left}".strip()))
    return lines, fmt.more(len(counts), SHOWN_REASONS, "reason")


def _size_text(after: int | None, before: int | None) -> str:
    if after is None:
        return ""
    change = after / before - 1 if before else 0.0
    if abs(change) < 0.0005:
        return fmt.size(after)
    return f"{fmt.size(before)} → {fmt.size(after)} ({fmt.signed(change * 100, 2)} %)"


def _parameters(after: int | None, before: int | None) -> str:
    if after is None or after == before:
        return ""
    if before is None:
        return fmt.integer(after)
    return f"{fmt.integer(before)} → {fmt.integer(after)}"


def _size_bar(step: Step, before: int | None, largest: int) -> Markup:
    if step.size_bytes is None or largest <= 0:
        return Markup("")
    title = f"Size after {step.pass_}: {fmt.size(step.size_bytes)}"
    bars = []
    if before:
        bars.append(svg.rectangle(0, 2, before / largest * 100, 7, "bar before"))
    bars.append(svg.rectangle(0, 11, step.size_bytes / largest * 100, 9, "bar candidate"))
    return svg.drawing(title, f"before: {fmt.size(before)}", BAR_HEIGHT, *bars)
