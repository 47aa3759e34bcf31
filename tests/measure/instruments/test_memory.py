"""Peak memory of a step: of this step, not of what came before."""

from __future__ import annotations

import numpy as np
import pytest

from megacompile.measure.instruments.memory import Memory, peak_mb
from tests.measure.instruments.watched import step_run

MB = 2**20


@pytest.mark.skipif(peak_mb() is None, reason="no /proc here")
def test_the_peak_is_of_the_step() -> None:
    large, small = step_run(), step_run()
    with Memory().around(large):
        np.ones(200 * MB, np.uint8)
    with Memory().around(small):
        np.ones(MB, np.uint8)
    assert large.record.peak_memory_mb is not None
    assert small.record.peak_memory_mb is not None
    assert large.record.peak_memory_mb - small.record.peak_memory_mb > 150


def test_a_step_that_fails_is_noted_too() -> None:
    run = step_run()
    with pytest.raises(KeyError), Memory().around(run):
        raise KeyError
    assert run.record.peak_memory_mb == pytest.approx(peak_mb())
