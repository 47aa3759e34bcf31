"""Learning rates: cosine with warm restarts, and the range test."""

from __future__ import annotations

import math

import pytest

from megacompile.training.schedule import Cosine, range_test


def test_the_rate_restarts_at_each_third_and_falls_to_the_floor() -> None:
    factors = [Cosine(300).factor(step) for step in range(300)]
    assert [step for step, value in enumerate(factors) if value == 1.0] == [0, 100, 200]
    assert factors[50] == pytest.approx(0.505)
    for last in (99, 199, 299):
        assert factors[last] == pytest.approx(0.01, abs=0.001)
    assert min(factors) >= 0.01


def test_warm_up_rises_linearly_before_the_first_period() -> None:
    schedule = Cosine(34, periods=3, warmup=4)
    assert [schedule.factor(step) for step in range(5)] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert schedule.factor(14) == 1.0


def test_the_range_test_suggests_a_rate_on_the_slope() -> None:
    position = [10.0]

    def step(rate: float) -> float:
        """Gradient descent on 50 x^2: it diverges above a rate of 0.02."""
        loss = 50 * position[0] ** 2
        position[0] -= rate * 100 * position[0]
        return loss

    found = range_test(step, 100)
    assert found is not None
    assert 1e-4 < found.rate < 0.02
    assert found.losses[-1] > min(found.losses), "it went on until the loss rose"


def test_a_loss_that_never_falls_suggests_nothing() -> None:
    assert range_test(lambda rate: 1.0, 20) is None
    assert range_test(lambda rate: math.nan, 20) is None
