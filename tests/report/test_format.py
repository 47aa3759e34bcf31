"""Numbers as text, the same in every view."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from megacompile.report import format as fmt
from megacompile.report.figures import Metric, Ratio

SHOWS: list[Callable[[float | None], str]] = [
    fmt.number,
    fmt.trimmed,
    fmt.signed,
    fmt.percent,
    fmt.milliseconds,
    fmt.seconds,
    fmt.scaled,
    fmt.size,
    fmt.megabytes,
    fmt.times,
]


@pytest.mark.parametrize("show", SHOWS, ids=lambda show: show.__name__)
@pytest.mark.parametrize("value", [None, math.nan, math.inf, -math.inf])
def test_what_is_not_a_number_is_a_dash(
    show: Callable[[float | None], str], value: float | None
) -> None:
    assert show(value) == fmt.MISSING


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (fmt.number(0), "0"),
        (fmt.number(1234.5), "1,234"),
        (fmt.number(-0.012345), "−0.0123"),
        (fmt.number(1e-9), "1.00e−09"),
        (fmt.number(1e16, 2), "1.0e+16"),
        (fmt.trimmed(2.50), "2.5"),
        (fmt.trimmed(100.0), "100"),
        (fmt.trimmed(1e-9), "1.00e−09"),
        (fmt.signed(0.5), "+0.5"),
        (fmt.signed(-0.5), "−0.5"),
        (fmt.signed(0.0), "0"),
        (fmt.percent(0.125), "12.5 %"),
        (fmt.milliseconds(0.05), "50.0 µs"),
        (fmt.milliseconds(12.34), "12.3 ms"),
        (fmt.milliseconds(12_000.0), "12.0 s"),
        (fmt.seconds(0.0001), "0 s"),
        (fmt.seconds(0.25), "250 ms"),
        (fmt.seconds(59.94), "59.9 s"),
        (fmt.seconds(61), "1 min 01 s"),
        (fmt.seconds(3725), "1 h 02 min"),
        (fmt.scaled(2.27e7), "22.7 M"),
        (fmt.scaled(1.3e12, "op/s"), "1.30 Top/s"),
        (fmt.scaled(5), "5.00"),
        (fmt.size(999), "999 bytes"),
        (fmt.size(1000), "1.00 kB"),
        (fmt.megabytes(1221), "1.22 GB"),
        (fmt.integer(22713216), "22,713,216"),
        (fmt.integer(None), "—"),
        (fmt.times(3.0249), "3.02×"),
        (fmt.speedup(Ratio(median=3, low=2.98, high=3.06)), "3.00× [2.98, 3.06]"),
        (fmt.speedup(None), "—"),
        (fmt.bounds(None), ""),
        (fmt.metric(Metric(value=0.31, standard_error=0.0104)), "0.3100 ± 0.010"),
        (fmt.metric(Metric(value=0.31)), "0.3100"),
        (fmt.dims({"batch": 1, "seq": 128}), "batch 1, seq 128"),
        (fmt.dims({}), "fixed sizes"),
        (fmt.plural(1, "site"), "1 site"),
        (fmt.plural(3000, "site"), "3,000 sites"),
        (fmt.plural(2, "entry", "entries"), "2 entries"),
        (fmt.more(13, 12, "site"), "and 1 more site"),
        (fmt.more(5960, 0, "step"), "and 5,960 more steps"),
        (fmt.more(12, 12, "site"), ""),
        (fmt.moment("2026-03-14T10:26:53+01:00"), "2026-03-14 09:26 UTC"),
        (fmt.moment("yesterday"), "yesterday"),
        (fmt.clipped("abcdefgh", 5), "ab…gh"),
        (fmt.clipped("abc", 3), "abc"),
    ],
)
def test_numbers_in_words(shown: str, text: str) -> None:
    assert shown == text
