"""The scatter of quality against size: what a smaller artifact costs in answers."""

from __future__ import annotations

from dataclasses import dataclass

from markupsafe import Markup

from megacompile.report import format as fmt
from megacompile.report import svg
from megacompile.report.model import Candidate, Report
from megacompile.report.summary import Z95, Entry, entries, metric_names, worst_cosine

HEIGHT = 280
TOP, BOTTOM = 16, HEIGHT - 40
RADIUS = 11
NEAR = 2.5
METRIC_CAPTION = (
    "Whisker: 95 % interval of the sampling error. Left is smaller. Marks at the same place "
    "are drawn side by side."
)
COSINE_CAPTION = (
    "No metric was given, so this is the cosine of the worst sample against the original's "
    "outputs. Left is smaller."
)


@dataclass(frozen=True)
class Mark:
    """One engine in the scatter; `error` is half of its 95 % interval."""

    entry: Entry
    size: int
    value: float
    error: float | None
    text: str


@dataclass(frozen=True)
class Tradeoff:
    """The scatter and its legend."""

    title: str
    caption: str
    plot: Markup
    marks: list[Mark]


def tradeoff(report: Report) -> Tradeoff | None:
    """The first metric against size, or the worst sample's cosine when there is no metric."""
    names = metric_names(report)
    marks = _metric_marks(report, names[0]) if names else _cosine_marks(report)
    if not marks:
        return None
    quality = names[0] if names else "cosine of the worst sample"
    across = svg.fitted([float(mark.size) for mark in marks], log_beyond=40)
    up = svg.fitted([y for mark in marks for y in _ends(mark)], zero=False, log_beyond=1e9)
    shifts = _shifts(marks, across, up)
    drawn = [_drawn(mark, across, up, shift) for mark, shift in zip(marks, shifts, strict=True)]
    shapes = [*_frame(across, up), *reversed(drawn)]
    words = "; ".join(f"{m.entry.name}: {fmt.size(m.size)}, {m.text}" for m in marks[:30])
    title = f"{quality} against size"
    caption = METRIC_CAPTION if names else COSINE_CAPTION
    return Tradeoff(title, caption, svg.drawing(title, words, HEIGHT, *shapes), marks)


def _metric_marks(report: Report, name: str) -> list[Mark]:
    marks = []
    for entry in entries(report):
        value, size = entry.engine.metric.get(name), entry.engine.size_bytes
        if value is None or size is None or not fmt.present(value.value):
            continue
        known = value.standard_error if fmt.present(value.standard_error) else None
        error = Z95 * known if known is not None else None
        marks.append(Mark(entry, size, value.value, error, fmt.metric(value)))
    return marks


def _cosine_marks(report: Report) -> list[Mark]:
    marks = []
    for entry in entries(report):
        if not isinstance(entry.engine, Candidate) or entry.engine.size_bytes is None:
            continue
        cosine = worst_cosine(entry.engine)
        if cosine is not None:
            text = fmt.trimmed(cosine, 6)
            marks.append(Mark(entry, entry.engine.size_bytes, cosine, None, text))
    return marks


def _ends(mark: Mark) -> list[float]:
    error = mark.error or 0.0
    return [mark.value - error, mark.value + error]


def _height(up: svg.Scale, value: float) -> float:
    share = (up.at(value) - svg.LEFT) / (svg.RIGHT - svg.LEFT)
    return BOTTOM - share * (BOTTOM - TOP)


def _frame(across: svg.Scale, up: svg.Scale) -> list[Markup]:
    shapes = []
    for tick, label in zip(up.ticks(), svg.tick_texts(up), strict=True):
        y = _height(up, tick)
        shapes.append(svg.line(0, y, 100, y, "grid"))
        shapes.append(svg.text(0, y - 3, label, "tick", "start"))
    for tick in across.ticks():
        x = across.at(tick)
        anchor = "start" if x < 4 else "end" if x > 94 else "middle"
        shapes.append(svg.line(x, BOTTOM, x, BOTTOM + 5, "rule"))
        label = "0" if tick == 0 else fmt.trimmed(tick / 1e6) + " MB"
        shapes.append(svg.text(x, BOTTOM + 20, label, "tick", anchor))
    shapes.append(svg.line(0, BOTTOM, 100, BOTTOM, "rule"))
    return shapes


def _shifts(marks: list[Mark], across: svg.Scale, up: svg.Scale) -> list[int]:
    """Pixels that move marks at the same place apart, towards the middle."""
    places: list[tuple[float, float]] = []
    shifts = []
    for mark in marks:
        x, y = across.at(float(mark.size)), _height(up, mark.value)
        same = sum(abs(x - left) < NEAR and abs(y - top) < 2 * RADIUS for left, top in places)
        places.append((x, y))
        shifts.append(same % 4 * (2 * RADIUS + 3) * (-1 if x > 50 else 1))
    return shifts


def _drawn(mark: Mark, across: svg.Scale, up: svg.Scale, shift: int) -> Markup:
    x, y = across.at(float(mark.size)), _height(up, mark.value)
    tone = mark.entry.tone
    shapes = []
    if mark.error is not None:
        low, high = (_height(up, end) for end in _ends(mark))
        shapes.append(svg.line(x, low, x, high, f"whisker {tone}"))
    shapes.append(svg.circle(x, y, RADIUS, f"dot {tone}"))
    shapes.append(svg.text(x, y + 4, mark.entry.key, f"inside {tone}"))
    return svg.element("g", *shapes, transform=f"translate({shift} 0)" if shift else None)
