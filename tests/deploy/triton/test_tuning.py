"""Batch sizes and delay, chosen from a measured curve."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from megacompile.deploy.triton.export import export_triton
from megacompile.deploy.triton.tuning import (
    Measurement,
    Tuning,
    choose,
    measure_curve,
    sizes_to_measure,
)
from tests.deploy.triton.conftest import World, read_json
from tests.deploy.triton.exporting import reseal

pytest.importorskip("tritonclient", reason="tritonclient is not installed")


def test_preferred_sizes_and_delay_come_from_the_measured_curve(
    bundle: Path, tmp_path: Path
) -> None:
    reseal(bundle, {**read_json(bundle / "spec.json"), "deploy": {"triton": {}}})
    exported = export_triton(bundle, tmp_path / "repository", lambda message: None)
    assert [one.batch for one in exported.curve] == [1, 2, 4, 8]
    assert exported.tuning == choose(exported.curve)


@pytest.mark.parametrize(
    ("latencies", "expected"),
    [
        ({1: 10, 2: 11, 4: 13, 8: 20}, Tuning((2, 4, 8), 5000)),
        ({1: 10, 2: 20, 4: 40, 8: 80}, Tuning((), 0)),
        ({1: 10, 2: 12, 4: 24, 8: 48}, Tuning((2,), 5000)),
        ({1: 8}, Tuning((), 0)),
    ],
)
def test_a_larger_batch_must_be_worth_it(latencies: dict[int, float], expected: Tuning) -> None:
    assert choose([Measurement(b, ms) for b, ms in latencies.items()]) == expected


def test_sizes_of_the_curve() -> None:
    assert sizes_to_measure(1) == [1]
    assert sizes_to_measure(8) == [1, 2, 4, 8]
    assert sizes_to_measure(12) == [1, 2, 4, 8, 12]


def test_the_curve_is_of_real_calls(net: World) -> None:
    seen: list[int] = []

    def run(feeds: Any) -> Any:
        seen.append(len(feeds["x"]))
        return {}

    curve = measure_curve(run, net.model.signature, "batch", 4)
    assert {one.batch for one in curve} == set(seen) == {1, 2, 4}
    assert all(one.latency_ms > 0 for one in curve)
