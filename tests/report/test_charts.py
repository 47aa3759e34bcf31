"""Charts made of rows: what is drawn, what is left out, and shares of a whole."""

from __future__ import annotations

import math

import pytest

from megacompile.report import svg
from megacompile.report.charts import (
    CURVE_STEPS,
    SHOWN_ROWS,
    build_time_chart,
    density,
    distribution_chart,
    latency_chart,
    share_chart,
    speedup_chart,
)
from megacompile.report.model import BuildTime

from . import samples

POINT = samples.POINTS[0]


def test_every_engine_that_was_measured_has_a_row() -> None:
    chart = latency_chart(samples.sample_report(), POINT)
    assert chart is not None
    assert [row.key for row in chart.rows] == ["A", "B", "1", "2", "3"]
    assert latency_chart(samples.unexecuted_report(), POINT) is None


def test_the_reference_has_no_speedup_against_itself() -> None:
    chart = speedup_chart(samples.sample_report(), POINT)
    assert chart is not None
    assert "A" not in [row.key for row in chart.rows]
    assert chart.rows[1].value == "3.04×"
    assert speedup_chart(samples.withheld_report(), POINT) is None


def test_a_scale_that_is_logarithmic_is_said() -> None:
    report = samples.sample_report()
    report.candidates[0].points[0].latency_ms.p50 = 0.01
    chart = latency_chart(report, POINT)
    assert chart is not None
    assert chart.caption.endswith("Logarithmic scale.")


def test_long_charts_are_capped() -> None:
    report = samples.large_report()
    report.candidates += [one.model_copy() for one in report.candidates]
    chart = latency_chart(report, POINT)
    assert chart is not None
    assert len(chart.rows) == SHOWN_ROWS
    assert chart.rest == "and 12 more engines"


def test_a_few_latencies_are_no_distribution() -> None:
    report = samples.plain_report()
    report.candidates[0].points[0].histogram = [10.0] * 9
    assert distribution_chart(report, POINT) is None
    report.candidates[0].points[0].histogram = [10.0] * 10
    assert distribution_chart(report, POINT) is not None


def test_a_density_peaks_where_the_values_are() -> None:
    scale = svg.Scale(0.0, 2.0)
    heights = density([0.5] * 20 + [1.4], scale)
    assert len(heights) == CURVE_STEPS + 1
    assert max(heights) == pytest.approx(0.94)
    assert heights.index(max(heights)) == CURVE_STEPS // 4
    assert heights[-1] < 0.01


def times(**changes: float) -> BuildTime:
    parts = ("passes", "lowering", "verification", "measuring", "evaluation", "own")
    return BuildTime(**{"total": 60.0, **dict.fromkeys(parts, 10.0), **changes})


def test_time_that_no_part_took_is_shown_when_it_counts() -> None:
    assert "waiting and other" not in [row.name for row in build_time_chart(times()).rows]
    (*_, rest) = build_time_chart(times(total=100.0)).rows
    assert (rest.name, rest.value, rest.note) == ("waiting and other", "40.0 s", "40 %")


def test_shares_of_a_whole() -> None:
    parts = {"int8": 5.0, "float32": math.nan}
    chart = share_chart("Rates", "", parts, str, whole=10.0, marked="int8")
    assert [(row.tone, row.note) for row in chart.rows] == [
        ("winner", "the winner's"),
        ("candidate", "0 %"),
    ]
    assert 'width="50.00%"' in chart.rows[0].plot
