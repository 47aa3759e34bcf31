"""Limits of a budget, held against what was measured."""

from __future__ import annotations

import pytest

from megacompile.builder.gates import gates_of, metric_gate
from megacompile.report.figures import Metric
from megacompile.report.model import Step
from megacompile.spec import Budget
from tests.builder.races import candidate, point, ratio


def lowering(cosine: float, dead: list[str]) -> Step:
    error = {"max_abs": 1, "relative": 1, "cosine_min": cosine, "worst": "y", "dead_channels": dead}
    return Step.model_validate(
        {"pass": "onnxruntime", "form": "engine", "effect": "LOSSY", "error": error}
    )


def passed(budget: Budget, **parts: object) -> dict[str, bool]:
    mine = candidate("mine", **parts)
    return {gate.name: gate.passed for gate in gates_of(budget, mine, {})}


@pytest.mark.parametrize(("cosine", "fits"), [(0.99, True), (0.9899, False)])
def test_limits_of_the_answers(cosine: float, fits: bool) -> None:
    found = passed(Budget(cosine=0.99), lowering=lowering(cosine, []))
    assert found == {"cosine": fits, "dead_channels": True}


def test_dead_channels_are_always_looked_at() -> None:
    assert passed(Budget(), lowering=lowering(1, ["y[3]"])) == {"dead_channels": False}


def test_what_was_not_measured_does_not_pass() -> None:
    budget = Budget(cosine=0.9, size_mb=1, latency_ms=1, peak_memory_mb=1)
    assert not any(passed(budget).values())
    assert set(passed(budget)) == {"cosine", "size_mb", "latency_ms", "peak_memory_mb"}


def test_limits_of_time_memory_and_size() -> None:
    budget = Budget(speedup=2, latency_ms=4, peak_memory_mb=100, size_mb=2)
    mine = candidate("mine", point(4, ratio(2.005), 101), size_bytes=2_000_000)
    found = {gate.name: gate for gate in gates_of(budget, mine, {})}
    assert found["latency_ms"].passed
    assert found["size_mb"].passed
    assert not found["peak_memory_mb"].passed
    # The lower end of the interval counts, not the median.
    assert found["speedup"].value == pytest.approx(1.995)
    assert not found["speedup"].passed


def test_an_engine_that_never_ran_is_not_timed() -> None:
    budget = Budget(speedup=2, latency_ms=4, peak_memory_mb=100, size_mb=2)
    assert passed(budget, executed=False, size_bytes=1) == {"size_mb": True}


def test_the_worst_metric_counts() -> None:
    original = {
        "accuracy": Metric(value=0.8),
        "loss": Metric(value=2.0, higher_is_better=False),
    }
    metrics = {"accuracy": Metric(value=0.78), "loss": Metric(value=2.2, higher_is_better=False)}
    gate = metric_gate(0.05, metrics, original)
    assert gate.value == pytest.approx(0.1)
    assert not gate.passed
    assert gate.note == "loss: 2 to 2.2"
    assert metric_gate(0.1001, metrics, original).passed
    better = {**metrics, "loss": Metric(value=1.0, higher_is_better=False)}
    assert metric_gate(0.05, better, original).note == "accuracy: 0.8 to 0.78"


def test_a_metric_that_is_not_there() -> None:
    gate = metric_gate(0.05, {}, {"accuracy": Metric(value=0.8)})
    assert (gate.passed, gate.value, gate.note) == (False, None, "'accuracy' was not measured")
    assert metric_gate(0.05, {}, {}).note == "no metric"
