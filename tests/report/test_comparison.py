"""Two reports compared: the machines, the noise between them, and dotted paths."""

from __future__ import annotations

import pytest

from megacompile.report.comparison import LATENCY_NOISE, _latency_noise, diff_reports, flattened

from . import samples


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


def test_the_noise_is_what_the_restless_of_two_builds_saw() -> None:
    calm, restless = samples.sample_report(), samples.withheld_report()
    assert _latency_noise(calm, calm) == LATENCY_NOISE
    assert _latency_noise(calm, restless) == pytest.approx(0.17)
    assert _latency_noise(calm, samples.broken_numbers_report()) == LATENCY_NOISE


def test_another_machine_or_thread_count_is_said() -> None:
    assert diff_reports(samples.sample_report(), samples.later_report()).same_machine
    diff = diff_reports(samples.sample_report(), samples.moved_report())
    assert not diff.same_machine
    assert diff.machine_after == "AMD EPYC 9654 (4 of 96 cores), 4 threads"
    threads = samples.sample_report()
    threads.environment = samples.environment(threads=1)
    assert not diff_reports(samples.sample_report(), threads).same_machine


def test_versions_that_differ_are_named() -> None:
    diff = diff_reports(samples.sample_report(), samples.later_report())
    assert [(one.path, one.before, one.after) for one in diff.versions] == [
        ("openvino", "2025.4.0", "2026.0.0")
    ]
