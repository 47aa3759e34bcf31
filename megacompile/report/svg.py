"""SVG as escaped text. Lengths across are percentages, so drawings fit any width unscaled."""

from __future__ import annotations

import math
from dataclasses import dataclass

from markupsafe import Markup

from megacompile.report import format as fmt

LEFT, RIGHT = 1.5, 98.5


def element(name: str, *children: str, **attributes: str | float | None) -> Markup:
    """One element. Children and attributes are escaped unless they are markup already."""
    parts = []
    for key, value in attributes.items():
        if value is None:
            continue
        text = f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
        parts.append(Markup(' {}="{}"').format(key.rstrip("_").replace("_", "-"), text))
    head = Markup("").join(parts)
    body = Markup("").join(children)
    return Markup("<{0}{1}>{2}</{0}>").format(Markup(name), head, body)


def drawing(title: str, description: str, height: int, *children: str) -> Markup:
    """An inline drawing as wide as its box, with its name and description for screen readers."""
    named = [element("title", title), element("desc", description)]
    return element("svg", *named, *children, role="img", width="100%", height=height)


def text(x: float, y: float, content: str, class_: str = "", anchor: str = "middle") -> Markup:
    """Text whose baseline starts, centres or ends at `x` percent."""
    return element("text", content, x=f"{x:.2f}%", y=y, class_=class_, text_anchor=anchor)


def line(x1: float, y1: float, x2: float, y2: float, class_: str) -> Markup:
    """A line from `x1` to `x2` percent, `y1` to `y2` pixels."""
    return element("line", x1=f"{x1:.2f}%", y1=y1, x2=f"{x2:.2f}%", y2=y2, class_=class_)


def circle(x: float, y: float, radius: float, class_: str) -> Markup:
    """A dot at `x` percent."""
    return element("circle", cx=f"{x:.2f}%", cy=y, r=radius, class_=class_)


def rectangle(x: float, y: float, width: float, height: float, class_: str) -> Markup:
    """A bar that starts at `x` and is `width` percent wide."""
    return element(
        "rect",
        x=f"{x:.2f}%",
        y=y,
        width=f"{max(width, 0):.2f}%",
        height=height,
        rx=2,
        class_=class_,
    )


def area(values: list[float], height: int, class_: str) -> Markup:
    """A filled curve over the whole width; the values are shares of the height."""
    if not values:
        return Markup("")
    start, end = LEFT * 10, RIGHT * 10
    path = f"M{start:.1f},{height} L{_points(values, height)} L{end:.1f},{height}"
    shape = element("path", d=path, class_=class_, vector_effect="non-scaling-stroke")
    return _stretched(shape, height)


def curve(values: list[float], height: int, class_: str) -> Markup:
    """A line over the whole width; the values are shares of the height."""
    shape = element(
        "path",
        d="M" + _points(values, height),
        class_=class_,
        fill="none",
        vector_effect="non-scaling-stroke",
    )
    return _stretched(shape, height)


def _points(values: list[float], height: int) -> str:
    """A path through the values on a drawing that is 1,000 wide."""
    last, span = max(len(values) - 1, 1), (RIGHT - LEFT) * 10
    points = [
        f"{LEFT * 10 + at / last * span:.1f},{height - value * height:.1f}"
        for at, value in enumerate(values)
    ]
    return " L".join(points)


def _stretched(shape: Markup, height: int) -> Markup:
    """A shape that is 1,000 wide, drawn as wide as its box: a path knows no percentages."""
    return element(
        "svg",
        shape,
        viewBox=f"0 0 1000 {height}",
        width="100%",
        height=height,
        preserveAspectRatio="none",
    )


@dataclass(frozen=True)
class Scale:
    """Values to percentages of the width, linear or logarithmic."""

    low: float
    high: float
    logarithmic: bool = False

    def at(self, value: float) -> float:
        """The place of a value in percent, kept inside the drawing."""
        low, high, here = self.low, self.high, value
        if self.logarithmic:
            low, high, here = math.log(low), math.log(high), math.log(max(value, self.low))
        share = (here - low) / (high - low) if high > low else 0.5
        return LEFT + min(max(share, 0.0), 1.0) * (RIGHT - LEFT)

    def ticks(self) -> list[float]:
        """Four to six round values inside the scale."""
        return _log_ticks(self) if self.logarithmic else _linear_ticks(self)


def tick_texts(scale: Scale) -> list[str]:
    """The ticks' labels; on a linear scale all with the same number of decimals."""
    texts = [fmt.trimmed(tick, 6) for tick in scale.ticks()]
    if scale.logarithmic:
        return texts
    decimals = max((len(text.partition(".")[2]) for text in texts), default=0)
    return [f"{tick:,.{decimals}f}".replace("-", fmt.MINUS) for tick in scale.ticks()]


def fitted(values: list[float], *, zero: bool = True, log_beyond: float = 20.0) -> Scale:
    """A scale that holds all values; logarithmic when they differ by more than `log_beyond`."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return Scale(0.0, 1.0)
    low, high = min(finite), max(finite)
    if low > 0 and high / low > log_beyond:
        return Scale(low / 1.1, high * 1.1, logarithmic=True)
    if zero and low >= 0:
        return Scale(0.0, high * 1.04 or 1.0)
    margin = (high - low) * 0.08 or abs(high) * 0.01 or 1.0
    return Scale(low - margin, high + margin)


def _linear_ticks(scale: Scale) -> list[float]:
    span = scale.high - scale.low
    step = 10 ** math.floor(math.log10(span))
    for share in (0.1, 0.2, 0.5, 1.0, 2.0):
        if span / (step * share) <= 5:
            step *= share
            break
    first = math.ceil(scale.low / step - 1e-9)
    count = math.floor(scale.high / step + 1e-9) - first + 1
    return [round((first + at) * step, 12) for at in range(max(count, 0))]


def _log_ticks(scale: Scale) -> list[float]:
    start, stop = math.floor(math.log10(scale.low)), math.ceil(math.log10(scale.high))
    for factors in ((1, 2, 5), (1, 3), (1,)):
        ticks = [float(factor * 10**power) for power in range(start, stop) for factor in factors]
        inside = [tick for tick in ticks if scale.low <= tick <= scale.high]
        if len(inside) <= 6:
            return inside
    return inside[:: math.ceil(len(inside) / 6)]
