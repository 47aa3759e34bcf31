"""The scatter of quality against size."""

from __future__ import annotations

from megacompile.report.tradeoff import tradeoff

from . import samples


def test_the_metric_against_size_with_its_interval() -> None:
    view = tradeoff(samples.sample_report())
    assert view is not None
    assert view.title == "recall@1 against size"
    assert [mark.entry.key for mark in view.marks] == ["A", "B", "1", "2", "3"]
    assert view.marks[2].value == 0.3085
    assert view.marks[2].error == 1.96 * 0.0104
    assert "Whisker" in view.caption


def test_without_a_metric_it_is_the_worst_samples_cosine() -> None:
    view = tradeoff(samples.plain_report())
    assert view is not None
    assert view.title == "cosine of the worst sample against size"
    (mark,) = view.marks
    assert (mark.value, mark.error, mark.text) == (0.99604, None, "0.99604")
    assert view.caption.startswith("No metric was given")


def test_marks_at_the_same_place_are_drawn_side_by_side() -> None:
    report = samples.sample_report()
    one, other = samples.candidate_int8(), samples.candidate_int8()
    other.name = "twin"
    report.candidates, report.baselines = [one, other], []
    view = tradeoff(report)
    assert view is not None
    assert view.plot.count("translate(") == 1


def test_nothing_that_has_a_size_and_an_answer_is_no_scatter() -> None:
    assert tradeoff(samples.failed_report()) is None
