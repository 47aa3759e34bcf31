"""Two reports compared."""

from __future__ import annotations

from collections.abc import Callable

from megacompile.report.comparison import EngineDiff, diff_reports, flattened
from megacompile.report.diff import render_diff
from megacompile.report.model import Metric

from . import samples

Golden = Callable[[str, str], None]


def int8(diffs: list[EngineDiff]) -> EngineDiff:
    return next(one for one in diffs if one.name == "int8/openvino")


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


def test_latencies_of_two_machines_are_not_compared() -> None:
    diff = diff_reports(samples.sample_report(), samples.moved_report())
    every = [c.quantity for one in [*diff.candidates, *diff.baselines] for c in one.changes]
    assert not diff.same_machine
    assert "latency" not in every
    assert "peak memory" not in every
    assert "Latencies and memory are therefore not compared" in render_diff(diff)


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


def test_withheld_reports_are_named() -> None:
    text = render_diff(diff_reports(samples.sample_report(), samples.withheld_report()))
    assert "The report after withholds its speed-ups" in text
    assert "Winner: none (was int8/openvino)" in text


def test_spec_differences_are_dotted_paths() -> None:
    assert flattened({"a": {"b": [1, {"c": None}]}, "d": {}}) == {
        "a.b[0]": "1",
        "a.b[1].c": "null",
        "d": "{}",
    }
    diff = diff_reports(samples.sample_report(), samples.later_report())
    assert ("budget.metric_drop", "0.01", "0.2") in [
        (one.path, one.before, one.after) for one in diff.spec
    ]
    assert ("seed", None, "1") in [(one.path, one.before, one.after) for one in diff.spec]


def test_broken_numbers_and_hostile_text_are_survived() -> None:
    diff = diff_reports(samples.sample_report(), samples.broken_numbers_report())
    assert "nan" not in render_diff(diff)
    hostile = render_diff(diff_reports(samples.sample_report(), samples.hostile_report()))
    assert "<script" not in hostile


def test_speedups_against_two_references_are_not_compared() -> None:
    later = samples.later_report()
    later.baselines.reverse()
    diff = diff_reports(samples.sample_report(), later)
    assert "speed-up" not in [c.quantity for one in diff.candidates for c in one.changes]
    assert "against eager before and against torch.compile after" in render_diff(diff)


def test_a_new_precision_is_named() -> None:
    later = samples.sample_report()
    later.candidates[0].precision = "float32"
    text = render_diff(diff_reports(samples.sample_report(), later))
    assert "precision: int8 → float32" in text
