"""What counts as the same answer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from megacompile.models.comparison import Comparison, InputSet, channel_axis, compare
from megacompile.plan.passes import Effect

RANDOM = np.random.default_rng(0)
Array = np.ndarray[Any, Any]


def against(expected: Array, actual: Array, real: bool = False) -> Comparison:
    return compare([InputSet("set", {}, {"y": expected}, real)], [{"y": actual}])


def normal(*shape: int) -> Array:
    return RANDOM.standard_normal(shape).astype(np.float32)


def test_equal_outputs_break_nothing() -> None:
    for value in (
        normal(4, 5),
        np.float32([]),
        np.zeros((3, 4), np.float32),
        np.arange(9),
        np.float32(3).reshape(()),
        np.float32([np.nan, np.inf, -np.inf, 1]),
    ):
        found = against(value, value.copy())
        for effect in Effect:
            assert found.broken(effect.tolerance()) is None, value
        assert found.cosine_min == pytest.approx(1.0)
        assert found.max_abs == 0


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (1.0, np.nan),
        (np.nan, 1.0),
        (1.0, np.inf),
        (np.inf, -np.inf),
        (np.inf, np.nan),
        (-np.inf, 1.0),
    ],
)
@pytest.mark.parametrize("effect", Effect)
def test_not_finite_on_one_side(before: float, after: float, effect: Effect) -> None:
    a, b = normal(2, 3), None
    b = a.copy()
    a[1, 2], b[1, 2] = before, after
    broken = against(a, b).broken(effect.tolerance())
    assert broken is not None
    assert "[1, 2]" in broken
    assert "1 of 6" in broken


@pytest.mark.parametrize(
    ("actual", "message"),
    [
        (normal(3, 2), r"shape \[3, 2\] instead of \[2, 3\]"),
        (normal(2, 3).astype(np.float64), "float64 instead of float32"),
    ],
)
def test_shape_and_dtype(actual: Array, message: str) -> None:
    broken = against(normal(2, 3), actual).broken(Effect.LOSSY.tolerance())
    assert broken is not None
    import re

    assert re.search(message, broken)


def test_a_missing_output() -> None:
    found = compare([InputSet("set", {}, {"y": normal(2)})], [{"z": normal(2)}])
    assert found.broken(Effect.LOSSY.tolerance()) == "output 'y' is missing"


def test_float_rounding_is_exact_and_more_is_not() -> None:
    a = normal(16, 32)
    assert against(a, a * np.float32(1 + 1e-5)).broken(Effect.EXACT.tolerance()) is None
    b = a.copy()
    b[3, 4] += 0.01
    broken = against(a, b).broken(Effect.EXACT.tolerance())
    assert broken is not None
    assert "[3, 4]" in broken
    assert against(a, b).broken(Effect.NUMERIC.tolerance("bfloat16")) is None


def test_a_small_channel_is_held_to_its_own_scale() -> None:
    a = normal(64, 4) * np.float32([100, 100, 100, 20])
    b = a.copy()
    b[:, 3] += np.float32(20 * 5e-3)
    assert against(a, b).broken(Effect.EXACT.tolerance()) is not None


def test_numeric_is_the_cosine_of_the_worst_sample() -> None:
    a = normal(8, 100)
    b = a.copy()
    b[5] = normal(100)
    found = against(a, b)
    assert found.cosine_min < 0.5
    broken = found.broken(Effect.NUMERIC.tolerance("bfloat16"))
    assert broken is not None
    assert "0.98" in broken
    assert found.broken(Effect.LOSSY.tolerance()) is None


def test_the_worst_cosine_of_real_data_is_kept_apart() -> None:
    a = normal(4, 10)
    sets = [InputSet("made up", {}, {"y": a}), InputSet("real", {}, {"y": a}, real=True)]
    found = compare(sets, [{"y": -a}, {"y": a}])
    assert found.cosine_min == pytest.approx(-1)
    assert found.cosine_real == pytest.approx(1)
    assert against(a, a).cosine_real is None


def test_cosines_of_zero_vectors() -> None:
    zero, other = np.zeros((2, 3), np.float32), normal(2, 3)
    assert against(zero, zero).cosine_min == 1
    assert against(zero, other).cosine_min == 0
    assert against(other, zero).cosine_min == 0
    assert against(zero, other).relative == 1


def test_dead_channels() -> None:
    a = normal(32, 6)
    b = a.copy()
    b[:, 2] = b[:, 2].mean()
    found = against(a, b)
    assert found.dead_channels == ["y[2]"]
    assert "became constant" in (found.broken(Effect.LOSSY.tolerance()) or "")
    constant = a.copy()
    constant[:, 2] = 1
    assert against(constant, constant).dead_channels == [], "it was constant before"


def test_dead_channels_of_images_over_all_sets() -> None:
    assert channel_axis(4) == 1
    a = [normal(1, 3, 4, 4), normal(2, 3, 6, 6)]
    b = [x.copy() for x in a]
    for x in b:
        x[:, 1] = 0.5
    sets = [InputSet(str(i), {}, {"y": x}) for i, x in enumerate(a)]
    assert compare(sets, [{"y": x} for x in b]).dead_channels == ["y[1]"]


@pytest.mark.parametrize("dtype", [np.int64, np.uint8, np.bool_])
def test_integer_outputs(dtype: type) -> None:
    a = RANDOM.integers(0, 2, (5, 20)).astype(dtype)
    b = a.copy()
    b[0, 0] = not b[0, 0]
    found = against(a, b)
    assert "1 of 100 integers differ" in (found.broken(Effect.EXACT.tolerance()) or "")
    assert found.cosine_min == pytest.approx(0.99)


def test_half_precision_outputs() -> None:
    import ml_dtypes

    a = normal(8, 8)
    for dtype in (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)):
        low = a.astype(dtype)
        assert against(low, low).broken(Effect.EXACT.tolerance()) is None
        assert against(low, (low.astype(np.float32) * 1.5).astype(dtype)).broken(
            Effect.EXACT.tolerance()
        )
