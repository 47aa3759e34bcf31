"""Curves over one another with what they show in words: memory over a step, losses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from markupsafe import Markup

from megacompile.report import format as fmt
from megacompile.report import svg
from megacompile.report.charts import axis
from megacompile.report.trained import TrainingRecord

HEIGHT = 120
BINS = 240
TONES = ("baseline", "winner")


@dataclass(frozen=True)
class Picture:
    """Curves over each other with what they show in words."""

    title: str
    caption: str
    drawing: Markup
    axis: Markup
    legend: list[tuple[str, str, str]] = field(default_factory=list)
    """Tone, name, and value of each curve."""


def memory_picture(record: TrainingRecord) -> Picture | None:
    """Live memory over one step, before and after, on one scale."""
    curves = [record.plain.timeline, record.optimised.timeline]
    if not all(curves):
        return None
    end = max(curve[-1][0] for curve in curves) or 1.0
    top = max(value for curve in curves for _, value in curve) or 1.0
    drawn = [
        svg.area(_binned(curve, end, top), HEIGHT, f"curve {tone}")
        for curve, tone in zip(curves, TONES, strict=True)
    ]
    peaks = [max(value for _, value in curve) for curve in curves]
    scale = svg.Scale(0.0, end)
    before, after = map(fmt.megabytes, peaks)
    title = f"Live memory over a step: peak {before} before, {after} after"
    described = "Memory of live tensors over the time of one step"
    return Picture(
        "Memory over the step",
        "Live tensors, from zero to the higher peak; the step was watched by a profiler, which "
        "slows it.",
        svg.drawing(title, described, HEIGHT, *drawn),
        axis(scale, lambda x: x + " ms", "Time"),
        [("baseline", "plain", before), ("winner", "optimised", after)],
    )


def loss_picture(record: TrainingRecord) -> Picture | None:
    """Loss over steps, plain and optimised."""
    curves = [record.plain.losses, record.optimised.losses]
    if any(len(curve) < 2 for curve in curves):
        return None
    values = [value for curve in curves for value in curve if math.isfinite(value)]
    if not values:
        return None
    low, high = min(values), max(values)
    span = (high - low) or 1.0
    drawn = []
    for curve, tone in zip(curves, TONES, strict=True):
        heights = [_share(value, low, span) for value in _thinned(curve)]
        drawn.append(svg.curve(heights, HEIGHT, f"line {tone}"))
    title = f"Loss over {len(curves[0])} steps"
    described = f"from {fmt.number(high)} to {fmt.number(low)}"
    ends = [f"ends at {fmt.number(curve[-1], 4)}" for curve in curves]
    steps = svg.Scale(1.0, float(len(curves[0])))
    return Picture(
        "Loss curves",
        f"From {fmt.number(low)} at the bottom to {fmt.number(high)} at the top; where only a thin "
        "line in a thick one is seen, both are the same.",
        svg.drawing(title, described, HEIGHT, *drawn),
        axis(steps, str, "Step"),
        [("baseline", "plain", ends[0]), ("winner", "optimised", ends[1])],
    )


def _binned(curve: Sequence[tuple[float, float]], end: float, top: float) -> list[float]:
    """The highest value of each bin of the time axis as a share of `top`; a value holds until
    the next one."""
    bins = [0.0] * (BINS + 1)
    before, at_bin = 0.0, 0
    for moment, value in curve:
        here = min(BINS, int(moment / end * BINS))
        for index in range(at_bin, here + 1):
            bins[index] = max(bins[index], before)
        bins[here] = max(bins[here], value)
        before, at_bin = value, here
    return [value / top * 0.97 for value in bins]


def _thinned(values: Sequence[float]) -> list[float]:
    if len(values) <= BINS:
        return list(values)
    width = len(values) / BINS
    return [values[int(at * width)] for at in range(BINS)] + [values[-1]]


def _share(value: float, low: float, span: float) -> float:
    """A loss as a share of the height; what is not finite lies at the top."""
    if not math.isfinite(value):
        return 0.97
    return 0.03 + 0.94 * min(max((value - low) / span, 0.0), 1.0)
