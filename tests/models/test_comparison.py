"""What counts as the same answer."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from megacompile.models.comparison import (
    Comparison,
    InputSet,
    Tolerance,
    channel_axis,
    compare,
)

ROUNDING, ANYTHING = Tolerance.rounding(), Tolerance()
TOLERANCES = [ROUNDING, Tolerance.of("float32"), ANYTHING]
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
        for tolerance in TOLERANCES:
            assert found.broken(tolerance) is None, value
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
@pytest.mark.parametrize("tolerance", TOLERANCES)
def test_not_finite_on_one_side(before: float, after: float, tolerance: Tolerance) -> None:
    a = normal(2, 3)
    b = a.copy()
    a[1, 2], b[1, 2] = before, after
    broken = against(a, b).broken(tolerance)
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
    broken = against(normal(2, 3), actual).broken(ANYTHING)
    assert broken is not None
    assert re.search(message, broken)


def test_a_missing_output() -> None:
    found = compare([InputSet("set", {}, {"y": normal(2)})], [{"z": normal(2)}])
    assert found.broken(ANYTHING) == "output 'y' is missing"


def test_float_rounding_is_exact_and_more_is_not() -> None:
    a = normal(16, 32)
    assert against(a, a * np.float32(1 + 1e-5)).broken(ROUNDING) is None
    b = a.copy()
    b[3, 4] += 0.01
    broken = against(a, b).broken(ROUNDING)
    assert broken is not None
    assert "[3, 4]" in broken
    assert against(a, b).broken(Tolerance.of("bfloat16")) is None


def test_a_small_channel_is_held_to_its_own_scale() -> None:
    a = normal(64, 4) * np.float32([100, 100, 100, 20])
    b = a.copy()
    b[:, 3] += np.float32(20 * 5e-3)
    assert against(a, b).broken(ROUNDING) is not None


def test_numeric_is_the_cosine_of_the_worst_sample() -> None:
    a = normal(8, 100)
    b = a.copy()
    b[5] = normal(100)
    found = against(a, b)
    assert found.cosine_min < 0.5
    broken = found.broken(Tolerance.of("bfloat16"))
    assert broken is not None
    assert "0.98" in broken
    assert found.broken(ANYTHING) is None


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
    assert "became constant" in (found.broken(ANYTHING) or "")
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
    assert "1 of 100 integers differ" in (found.broken(ROUNDING) or "")
    assert found.cosine_min == pytest.approx(0.99)


def test_half_precision_outputs() -> None:
    import ml_dtypes

    a = normal(8, 8)
    for dtype in (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)):
        low = a.astype(dtype)
        assert against(low, low).broken(ROUNDING) is None
        larger = (low.astype(np.float32) * 1.5).astype(dtype)
        assert against(low, larger).broken(ROUNDING)


@pytest.mark.parametrize(
    ("dtype", "least"),
    [("float32", 0.99999), ("float16", 0.999), ("bfloat16", 0.98), ("float8_e4m3fn", 0.98)],
)
def test_a_dtypes_tolerance_is_a_cosine(dtype: str, least: float) -> None:
    tolerance = Tolerance.of(dtype)
    assert tolerance == Tolerance(exact=False, cosine=least, dtype=dtype)
    assert Comparison(cosine_min=least).broken(tolerance) is None
    broken = Comparison(cosine_min=least - 1e-4).broken(tolerance)
    assert broken == f"cosine {least - 1e-4:.5f} of the worst sample is below {least} for {dtype}"


def test_real_data_decides_where_there_is_some() -> None:
    found = Comparison(cosine_min=0.5, cosine_real=0.9999)
    assert found.broken(Tolerance.of("float16")) is None
    assert found.broken(Tolerance.of("float32")) is not None, "0.9999 is too little for float32"


def test_rounding_looks_at_elements_and_not_at_the_cosine() -> None:
    found = Comparison(cosine_min=0.5)
    assert found.broken(Tolerance.rounding()) is None
    found.excess = "output 'y' on set: 2 instead of 1"
    assert found.broken(Tolerance.rounding()) == found.excess
    assert found.broken(Tolerance()) is None


def test_broken_promises_come_before_any_tolerance() -> None:
    failed = Comparison(failures=["output 'y' is missing", "more"])
    dead = Comparison(dead_channels=[f"y[{n}]" for n in range(6)])
    for tolerance in TOLERANCES:
        assert failed.broken(tolerance) == "output 'y' is missing"
        text = "6 output channels became constant: y[0], y[1], y[2], y[3]"
        assert dead.broken(tolerance) == text
