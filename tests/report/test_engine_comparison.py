"""Two engines of one name compared: each figure, and whether it is significantly apart."""

from __future__ import annotations

import pytest

from megacompile.report.comparison import diff_reports
from megacompile.report.diff_model import EngineDiff
from megacompile.report.engine_comparison import Rules, engine_diff
from megacompile.report.figures import Metric

from . import samples

ALL = Rules(latency_noise=0.05, speedups=True)


def int8(diffs: list[EngineDiff]) -> EngineDiff:
    return next(one for one in diffs if one.name == "int8/openvino")


def test_significant_losses_are_named() -> None:
    diff = diff_reports(samples.sample_report(), samples.later_report())
    worse = {(c.quantity, c.direction) for c in int8(diff.candidates).changes if c.significant}
    assert {
        ("speed-up", "worse"),
        ("latency", "worse"),
        ("metric", "worse"),
        ("size", "worse"),
        ("peak memory", "worse"),
        ("parameters", "changed"),
    } <= worse
    assert diff.worse
    assert not diff.better


def test_gates_status_and_presence_are_compared() -> None:
    diff = diff_reports(samples.sample_report(), samples.later_report())
    gates = {gate.name: (gate.before, gate.after) for gate in int8(diff.candidates).gates}
    assert gates == {"metric_drop": (True, False), "cosine": (True, False)}
    found = {one.name: one for one in diff.candidates}
    assert found["bf16/aotinductor"].presence == "only before"
    assert found["fp32/onnxruntime"].status_after == "built"


def test_overlapping_intervals_are_not_significant() -> None:
    later = samples.sample_report()
    later.candidates[0].points[0] = samples.point(samples.POINTS[0], 10.3, 31.1, 214.0)
    diff = diff_reports(samples.sample_report(), later)
    change = next(c for c in int8(diff.candidates).changes if c.quantity == "speed-up")
    assert not change.significant
    assert change.direction == "worse"


def test_lower_is_better_turns_the_direction() -> None:
    first, second = samples.sample_report(), samples.sample_report()
    for report, value in ((first, 0.10), (second, 0.30)):
        report.candidates[0].metric = {
            "error rate": Metric(value=value, standard_error=0.01, higher_is_better=False)
        }
    change = next(
        c for c in int8(diff_reports(first, second).candidates).changes if c.quantity == "metric"
    )
    assert change.significant
    assert change.direction == "worse"


@pytest.mark.parametrize(("factor", "significant"), [(1.04, False), (1.06, True)])
def test_a_latency_beyond_the_noise_is_significant(factor: float, significant: bool) -> None:
    before, after = samples.candidate_int8(), samples.candidate_int8()
    after.points[0].latency_ms.p50 *= factor
    (change,) = engine_diff(before, after, ALL).changes
    assert (change.quantity, change.direction) == ("latency", "worse")
    assert change.significant is significant
    assert change.basis == f"{'more' if significant else 'not more'} than 5 % apart"


def test_a_point_that_only_one_of_them_has_is_left_out() -> None:
    before, after = samples.candidate_int8(), samples.candidate_int8()
    before.points, after.points = before.points[:1], after.points[1:]
    assert not engine_diff(before, after, ALL).differs


def test_another_winner_is_compared_under_both_names() -> None:
    diff = engine_diff(samples.candidate_int8(), samples.candidate_bf16(), ALL)
    assert diff.name == "int8/openvino → bf16/aotinductor"
    assert (diff.precision_before, diff.precision_after) == ("int8", "bfloat16")
