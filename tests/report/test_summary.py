"""What every view derives from a report: the order, the changes, and the reasons."""

from __future__ import annotations

import pytest

from megacompile.report.summary import (
    all_points,
    change_text,
    entries,
    letters,
    metric_change,
    ordered,
    standing,
    status_text,
    worst_cosine,
)

from . import samples


def test_winner_comes_first_and_then_the_fast_ones() -> None:
    names = [candidate.name for candidate in ordered(samples.sample_report())]
    assert names[:3] == ["int8/openvino", "bf16/aotinductor", "fp32/onnxruntime"]
    assert names[3:] == ["int8/aotinductor", "fp16/tensorrt"]


def test_metric_change_is_judged_by_its_sampling_error() -> None:
    before, after = samples.metric(0.31)["recall@1"], samples.metric(0.30)["recall@1"]
    assert not metric_change("recall@1", before, after).significant
    after.value = 0.25
    change = metric_change("recall@1", before, after)
    assert change.significant
    assert not change.better
    after.standard_error = None
    assert not metric_change("recall@1", before, after).significant


def test_a_change_in_words() -> None:
    before, after = samples.metric(0.31)["recall@1"], samples.metric(0.25)["recall@1"]
    assert change_text(metric_change("recall@1", before, after)) == (
        "−0.06 ± 0.029, significantly worse"
    )
    after.value = 0.311
    assert change_text(metric_change("recall@1", before, after)).endswith("within sampling error")
    after.standard_error = None
    assert change_text(metric_change("recall@1", before, after)).endswith("unknown")


def test_keys_are_letters_for_baselines_and_numbers_for_candidates() -> None:
    keys = [(entry.key, entry.tone) for entry in entries(samples.sample_report())]
    assert keys[:3] == [("A", "baseline"), ("B", "baseline"), ("1", "winner")]
    assert keys[3:] == [("2", "candidate"), ("3", "outside"), ("4", "outside"), ("5", "outside")]


@pytest.mark.parametrize(
    ("index", "letter"), [(0, "A"), (25, "Z"), (26, "AA"), (51, "AZ"), (52, "BA"), (701, "ZZ")]
)
def test_letters_go_on_after_the_alphabet(index: int, letter: str) -> None:
    assert letters(index) == letter


def test_points_of_baselines_come_first_and_once() -> None:
    report = samples.sample_report()
    report.candidates[0].points.insert(0, samples.point({"batch": 9}, 1.0, None, 1.0))
    assert all_points(report) == [*samples.POINTS, {"batch": 9}]


def test_why_a_candidate_did_not_win() -> None:
    report = samples.sample_report()
    int8, failed, bf16, fp32, _ = report.candidates
    assert standing(report, int8) == ""
    assert standing(report, failed).startswith("the compiler ended with signal 9")
    assert standing(report, bf16) == "17.9 ms at the first point, 1.75× the winner's 10.2 ms"
    fp32.reason = None
    assert standing(report, fp32) == "outside: size_mb"


def test_the_last_step_that_was_verified_counts() -> None:
    int8 = samples.candidate_int8()
    assert worst_cosine(int8) == 0.99604
    assert int8.lowering is not None
    int8.lowering.error = None
    assert worst_cosine(int8) == 0.99631
    assert worst_cosine(samples.candidate_failed()) is None


def test_what_was_built_for_other_hardware_is_not_executed() -> None:
    assert [status_text(one) for one in samples.unexecuted_report().candidates] == [
        "not executed",
        "not executed",
    ]
