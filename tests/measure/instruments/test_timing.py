"""The wall time of a step, also of one that fails."""

from __future__ import annotations

import time

import pytest

from megacompile.measure.instruments.timing import Timing
from tests.measure.instruments.watched import step_run


def wait_and_fail() -> None:
    time.sleep(0.02)
    raise ZeroDivisionError


def test_the_time_is_noted_also_after_a_failure() -> None:
    run = step_run()
    with pytest.raises(ZeroDivisionError), Timing().around(run):
        wait_and_fail()
    assert 0.02 <= run.record.seconds < 2
