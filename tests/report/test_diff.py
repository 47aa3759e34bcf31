"""Two reports compared, as text."""

from __future__ import annotations

from megacompile.report.comparison import diff_reports
from megacompile.report.diff import render_diff

from . import samples
from .views import Golden


def test_same_report_has_no_difference(golden: Golden) -> None:
    diff = diff_reports(samples.sample_report(), samples.sample_report())
    assert not diff.worse
    assert not diff.better
    assert not [one for one in diff.candidates if one.differs]
    golden("same.diff.md", render_diff(diff))


def test_regression_is_golden(golden: Golden) -> None:
    golden(
        "later.diff.md", render_diff(diff_reports(samples.sample_report(), samples.later_report()))
    )


def test_other_machine_is_golden(golden: Golden) -> None:
    golden(
        "moved.diff.md", render_diff(diff_reports(samples.sample_report(), samples.moved_report()))
    )


def test_withheld_reports_are_named() -> None:
    text = render_diff(diff_reports(samples.sample_report(), samples.withheld_report()))
    assert "The report after withholds its speed-ups" in text
    assert "Winner: none (was int8/openvino)" in text


def test_broken_numbers_and_hostile_text_are_survived() -> None:
    diff = diff_reports(samples.sample_report(), samples.broken_numbers_report())
    assert "nan" not in render_diff(diff)
    hostile = render_diff(diff_reports(samples.sample_report(), samples.hostile_report()))
    assert "<script" not in hostile


def test_a_new_precision_is_named() -> None:
    later = samples.sample_report()
    later.candidates[0].precision = "float32"
    text = render_diff(diff_reports(samples.sample_report(), later))
    assert "precision: int8 → float32" in text


def test_latencies_of_two_machines_are_not_compared() -> None:
    diff = diff_reports(samples.sample_report(), samples.moved_report())
    every = [c.quantity for one in [*diff.candidates, *diff.baselines] for c in one.changes]
    assert not diff.same_machine
    assert "latency" not in every
    assert "peak memory" not in every
    assert "Latencies and memory are therefore not compared" in render_diff(diff)


def test_speedups_against_two_references_are_not_compared() -> None:
    later = samples.later_report()
    later.baselines.reverse()
    diff = diff_reports(samples.sample_report(), later)
    assert "speed-up" not in [c.quantity for one in diff.candidates for c in one.changes]
    assert "against eager before and against torch.compile after" in render_diff(diff)
