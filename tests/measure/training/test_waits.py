"""The share of a run that is spent waiting for data."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from megacompile.measure.training.waits import Waits


def test_the_start_is_apart_and_a_wait_counts_once() -> None:
    batches: Any = SimpleNamespace(started=2.0, waited=0.0)
    waits = Waits()
    waits.add(batches, 9.0, starting=True)
    assert waits.figures() == {"waiting": None, "waiting_ms": None, "data_start_ms": 2000.0}
    for waited, taken in ((0.1, 0.3), (0.3, 0.5)):
        batches.waited = waited
        waits.add(batches, taken, starting=False)
        assert batches.waited == 0.0, "it is used up"
    assert waits.figures() == {
        "waiting": pytest.approx(0.4 / 1.2),
        "waiting_ms": pytest.approx(200),
        "data_start_ms": 2000.0,
    }
