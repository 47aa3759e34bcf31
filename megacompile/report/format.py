"""Numbers as text, the same in every view. A missing or non-finite number is a dash."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime

from megacompile.report.figures import Metric, Ratio

MISSING = "—"
MINUS = "−"


def present(value: float | None) -> bool:
    """Whether there is a number to show."""
    return value is not None and math.isfinite(value)


def number(value: float | None, digits: int = 3) -> str:
    """`digits` significant digits, without an exponent for the usual sizes."""
    if value is None or not math.isfinite(value):
        return MISSING
    if value == 0:
        return "0"
    magnitude = math.floor(math.log10(abs(value)))
    if magnitude < -6 or magnitude >= 15:
        return f"{value:.{digits - 1}e}".replace("-", MINUS)
    decimals = max(0, digits - 1 - magnitude)
    text = f"{value:,.{decimals}f}"
    return text.replace("-", MINUS)


def trimmed(value: float | None, digits: int = 3) -> str:
    """Like `number`, without zeros at the end of the decimals."""
    text = number(value, digits)
    return text.rstrip("0").rstrip(".") if "." in text and "e" not in text else text


def signed(value: float | None, digits: int = 3) -> str:
    """A difference: the sign is always shown."""
    text = trimmed(value, digits)
    return f"+{text}" if value is not None and math.isfinite(value) and value > 0 else text


def percent(value: float | None, digits: int = 3) -> str:
    """A share as a percentage."""
    return MISSING if not present(value) else f"{trimmed((value or 0.0) * 100, digits)} %"


def milliseconds(value: float | None) -> str:
    """A latency given in milliseconds, in the unit that reads best."""
    if value is None or not math.isfinite(value):
        return MISSING
    if abs(value) >= 10_000:
        return f"{number(value / 1000)} s"
    if 0 < abs(value) < 0.1:
        return f"{number(value * 1000)} µs"
    return f"{number(value)} ms"


def seconds(value: float | None) -> str:
    """A duration given in seconds."""
    if value is None or not math.isfinite(value):
        return MISSING
    if value < 0.001:
        return "0 s"
    if value < 1:
        return f"{number(value * 1000, 2)} ms"
    if value < 60:
        return f"{value:.1f} s"
    whole = round(value)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def scaled(value: float | None, unit: str = "") -> str:
    """A large count or rate with a decimal prefix: `412 G`, `22.7 M`."""
    if value is None or not math.isfinite(value):
        return MISSING
    for size, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{number(value / size)} {prefix}{unit}"
    return f"{number(value)} {unit}".strip()


def size(value: float | None) -> str:
    """Bytes, in decimal units (1 MB is a million bytes)."""
    if value is not None and 0 <= value < 1000:
        return f"{value:.0f} bytes"
    return scaled(value, "B")


def megabytes(value: float | None) -> str:
    """Memory that is given in megabytes."""
    return MISSING if not present(value) else size((value or 0.0) * 1e6)


def integer(value: int | None) -> str:
    """A whole number with its thousands apart."""
    return MISSING if value is None else f"{value:,}"


def times(value: float | None) -> str:
    """A ratio: `3.02×`."""
    return MISSING if not present(value) else f"{number(value)}×"


def bounds(ratio: Ratio | None) -> str:
    """The 95 % interval alone: `[2.98, 3.06]`."""
    return "" if ratio is None else f"[{number(ratio.low)}, {number(ratio.high)}]"


def speedup(ratio: Ratio | None) -> str:
    """A speed-up with its 95 % interval: `3.02× [2.98, 3.06]`."""
    return MISSING if ratio is None else f"{times(ratio.median)} {bounds(ratio)}"


def metric(value: Metric | None) -> str:
    """A metric with its standard error: `0.310 ± 0.004`."""
    if value is None:
        return MISSING
    error = value.standard_error
    return number(value.value, 4) + (f" ± {number(error, 2)}" if present(error) else "")


def dims(values: Mapping[str, int]) -> str:
    """A benchmark point in words: `batch 1, seq 128`."""
    return ", ".join(f"{name} {value}" for name, value in values.items()) or "fixed sizes"


def plural(count: int, word: str, many: str | None = None) -> str:
    """`1 site`, `3 sites`."""
    return f"{count:,} {word if count == 1 else many or word + 's'}"


def more(total: int, shown: int, word: str) -> str:
    """What a capped list leaves out: `and 12 more sites`; empty when nothing is left out."""
    rest = total - shown
    return f"and {rest:,} more {word if rest == 1 else word + 's'}" if rest > 0 else ""


def moment(stamp: str) -> str:
    """An ISO time to the minute, in UTC; any other text as it is."""
    try:
        when = datetime.fromisoformat(stamp)
    except ValueError:
        return stamp
    zone = "" if when.tzinfo is None else " UTC"
    return (when.astimezone(UTC) if zone else when).strftime("%Y-%m-%d %H:%M") + zone


def clipped(text: str, length: int) -> str:
    """At most `length` characters, with the middle left out."""
    if len(text) <= length:
        return text
    head = (length - 1) // 2
    return text[:head] + "…" + text[len(text) - (length - 1 - head) :]
