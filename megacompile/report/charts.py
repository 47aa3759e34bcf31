"""Charts made of rows: a key and a name, a drawing on the shared scale, the figures as text."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from markupsafe import Markup

from megacompile.report import format as fmt
from megacompile.report import svg
from megacompile.report.figures import Ratio
from megacompile.report.model import BuildTime, Ceiling, Point, Report
from megacompile.report.summary import Entry, entries, point_at, reference

ROW_HEIGHT = 30
MIDDLE = ROW_HEIGHT / 2
CURVE_HEIGHT = 44
CURVE_STEPS = 120
SHOWN_ROWS = 30


@dataclass(frozen=True)
class Row:
    """One line of a chart."""

    key: str
    name: str
    tone: str
    plot: Markup
    value: str
    note: str = ""


@dataclass(frozen=True)
class Chart:
    """A chart with what it shows in words, for the caption."""

    title: str
    caption: str
    rows: Sequence[Row]
    axis: Markup = field(default_factory=Markup)
    rest: str = ""


def axis(scale: svg.Scale, label: Callable[[str], str], title: str) -> Markup:
    """The labelled ticks under a chart's rows."""
    marks = []
    labels = [label(text) for text in svg.tick_texts(scale)]
    for tick, text in zip(scale.ticks(), labels, strict=True):
        at = scale.at(tick)
        anchor = "start" if at < 4 else "end" if at > 94 else "middle"
        marks.append(svg.text(at, 12, text, "tick", anchor))
    return svg.drawing(title, "Axis: " + ", ".join(labels), 16, *marks)


def grid(scale: svg.Scale, height: int) -> list[Markup]:
    """The ticks as faint lines behind a row."""
    return [svg.line(scale.at(t), 0, scale.at(t), height, "grid") for t in scale.ticks()]


def interval(
    scale: svg.Scale, low: float, middle: float, high: float, tone: str, *, caps: bool
) -> list[Markup]:
    """A dot with a whisker; the winner's dot is larger, a baseline's is hollow."""
    whisker, dot = f"whisker {tone}", f"dot {tone} small" if caps else f"dot {tone}"
    radius = (4.5 if caps else 6.5) if tone == "winner" else (3.5 if caps else 5)
    shapes = [svg.line(scale.at(low), MIDDLE, scale.at(high), MIDDLE, whisker)]
    for end in [low, high] if caps else [high]:
        shapes.append(svg.line(scale.at(end), MIDDLE - 6, scale.at(end), MIDDLE + 6, whisker))
    return [*shapes, svg.circle(scale.at(middle), MIDDLE, radius, dot)]


def latency_chart(report: Report, dims: dict[str, int]) -> Chart | None:
    """p50 to p95 of every engine at one benchmark point."""
    found = _at_point(report, dims)
    if not found:
        return None
    scale = svg.fitted([x for _, p in found for x in (p.latency_ms.p50, p.latency_ms.p95)])
    rows = []
    for entry, point in found[:SHOWN_ROWS]:
        latency = point.latency_ms
        end = latency.p95 if fmt.present(latency.p95) else latency.p50
        value = fmt.milliseconds(latency.p50)
        note = f"p95 {fmt.milliseconds(latency.p95)}"
        plot = svg.drawing(
            f"{entry.name}: median {value}",
            f"from p50 to {note}, at {fmt.dims(dims)}",
            ROW_HEIGHT,
            *grid(scale, ROW_HEIGHT),
            *interval(scale, latency.p50, latency.p50, end, entry.tone, caps=False),
        )
        rows.append(Row(entry.key, entry.name, entry.tone, plot, value, note))
    return Chart(
        "Latency",
        "Dot: median (p50). Whisker: up to p95. Left is faster." + _log_note(scale),
        rows,
        axis(scale, lambda x: x + " ms", "Latency"),
        fmt.more(len(found), SHOWN_ROWS, "engine"),
    )


def speedup_chart(report: Report, dims: dict[str, int]) -> Chart | None:
    """The speed-up of every engine against the first baseline, with its interval."""
    base = reference(report)
    found = [
        (entry, point.speedup)
        for entry, point in _at_point(report, dims)
        if point.speedup is not None and entry.engine is not base and _whole(point.speedup)
    ]
    if not found or base is None:
        return None
    scale = svg.fitted([1.0, *(x for _, r in found for x in (r.low, r.high))])
    rows = []
    for entry, ratio in found[:SHOWN_ROWS]:
        one = scale.at(1.0)
        plot = svg.drawing(
            f"{entry.name}: {fmt.speedup(ratio)}",
            f"Speed-up against {base.name}",
            ROW_HEIGHT,
            *grid(scale, ROW_HEIGHT),
            svg.line(one, 0, one, ROW_HEIGHT, "unity"),
            *interval(scale, ratio.low, ratio.median, ratio.high, entry.tone, caps=True),
        )
        note = fmt.bounds(ratio)
        rows.append(Row(entry.key, entry.name, entry.tone, plot, fmt.times(ratio.median), note))
    return Chart(
        "Speed-up",
        f"Times faster than {base.name}; whisker: 95 % interval. Dashed line: 1×, as fast as "
        f"{base.name}. Right is faster." + _log_note(scale),
        rows,
        axis(scale, lambda x: x + "×", "Speed-up"),
        fmt.more(len(found), SHOWN_ROWS, "engine"),
    )


def distribution_chart(report: Report, dims: dict[str, int]) -> Chart | None:
    """How steady each engine is: the density of its latencies over its own median."""
    found = []
    for entry, point in _at_point(report, dims):
        median = point.latency_ms.p50
        taken = [x / median for x in point.histogram if math.isfinite(x) and median > 0]
        if len(taken) >= 10:
            found.append((entry, point, sorted(taken)))
    if not found:
        return None
    low = min(taken[0] for _, _, taken in found)
    high = max(taken[int(len(taken) * 0.99) - 1] for _, _, taken in found)
    scale = svg.Scale(max(0.0, low - 0.03), min(high + 0.05, 4.0))
    rows = []
    for entry, point, taken in found[:SHOWN_ROWS]:
        latency = point.latency_ms
        curve = svg.area(density(taken, scale), CURVE_HEIGHT, f"curve {entry.tone}")
        at = scale.at(1.0)
        plot = svg.drawing(
            f"{entry.name}: density of {latency.count} latencies over their median",
            f"p95 is {fmt.number(latency.p95 / latency.p50)} times the median",
            CURVE_HEIGHT,
            *grid(scale, CURVE_HEIGHT),
            curve,
            svg.line(at, 0, at, CURVE_HEIGHT, "unity"),
        )
        value = f"p99 {fmt.milliseconds(latency.p99)}"
        note = f"{fmt.times(latency.p99 / latency.p50)} its median"
        rows.append(Row(entry.key, entry.name, entry.tone, plot, value, note))
    return Chart(
        f"At {fmt.dims(dims)}",
        "Each engine's latencies over its own median (dashed). Narrow is steady; a tail to the "
        "right is jitter.",
        rows,
        axis(scale, lambda x: x + "×", "Latency over its median"),
        fmt.more(len(found), SHOWN_ROWS, "engine"),
    )


def density(values: Sequence[float], scale: svg.Scale) -> list[float]:
    """A Gaussian density estimate over the scale, its peak at 0.94."""
    count = len(values)
    quarter = values[count * 3 // 4] - values[count // 4]
    span = scale.high - scale.low
    width = max(0.9 * quarter / 1.34 * count**-0.2, span / 250)
    heights = []
    for at in range(CURVE_STEPS + 1):
        here = scale.low + span * at / CURVE_STEPS
        near = (math.exp(-0.5 * ((here - x) / width) ** 2) for x in values)
        heights.append(sum(near))
    peak = max(heights)
    return [height / peak * 0.94 if peak > 0 else 0.0 for height in heights]


def build_time_chart(times: BuildTime) -> Chart:
    """Where the build's wall time went."""
    parts = {
        "passes": times.passes,
        "lowering": times.lowering,
        "verification": times.verification,
        "measuring": times.measuring,
        "evaluation": times.evaluation,
        "megacompile itself": times.own,
    }
    known = sum(parts.values())
    if times.total - known > 0.01 * times.total:
        parts["waiting and other"] = times.total - known
    return share_chart(
        "Where the build's time went",
        f"{fmt.seconds(times.total)} in all.",
        parts,
        fmt.seconds,
        max(times.total, known),
    )


def ceiling_chart(ceiling: Ceiling) -> Chart:
    """The measured matrix product rates by dtype; the winner's dtype is marked."""
    return share_chart(
        "Matrix product rate of this machine",
        "Measured, in operations per second.",
        ceiling.rates,
        lambda rate: fmt.scaled(rate, "op/s"),
        max(ceiling.rates.values(), default=0),
        marked=ceiling.dtype,
    )


def share_chart(
    title: str,
    caption: str,
    parts: dict[str, float],
    label: Callable[[float], str],
    whole: float,
    marked: str | None = None,
) -> Chart:
    """Named bars on one scale from zero."""
    rows = []
    for name, value in parts.items():
        share = value / whole if whole > 0 and math.isfinite(value) else 0.0
        tone = "winner" if name == marked else "candidate"
        bar = svg.rectangle(0, 9, share * 100, 12, f"bar {tone}")
        track = svg.rectangle(0, 9, 100, 12, "track")
        plot = svg.drawing(f"{name}: {label(value)}", fmt.percent(share), ROW_HEIGHT, track, bar)
        note = "the winner's" if name == marked else fmt.percent(share, 2)
        rows.append(Row("", name, tone, plot, label(value), note))
    return Chart(title, caption, rows)


def _at_point(report: Report, dims: dict[str, int]) -> list[tuple[Entry, Point]]:
    found = [(entry, point_at(entry.engine, dims)) for entry in entries(report)]
    return [(e, p) for e, p in found if p is not None and fmt.present(p.latency_ms.p50)]


def _whole(ratio: Ratio) -> bool:
    return all(map(math.isfinite, (ratio.median, ratio.low, ratio.high)))


def _log_note(scale: svg.Scale) -> str:
    return " Logarithmic scale." if scale.logarithmic else ""
