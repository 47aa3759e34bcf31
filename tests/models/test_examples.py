"""Made-up inputs: in range, apart, seeded, and at sizes that nobody tried."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from megacompile.models import examples
from megacompile.models.signature import Signature
from megacompile.spec import Spec
from megacompile.spec.inputs import Dim


def signature(inputs: dict[str, Any], **dims: Any) -> Signature:
    spec = Spec(name="a", model={"onnx": "a"}, inputs=inputs, dims=dims)
    return Signature(spec.inputs, spec.dims)


BATCH = {"min": 1, "typical": 4, "max": 8}


def test_tensors_are_apart_and_seeded() -> None:
    one = signature({"a": {"shape": ["batch", 3]}, "b": {"shape": ["batch", 3]}}, batch=BATCH)
    sizes = examples.sizes(one, "typical")
    assert sizes == {"batch": 4}
    feeds, again, other = (examples.make(one, sizes, seed) for seed in (0, 0, 1))
    assert not np.array_equal(feeds["a"], feeds["b"])
    assert not np.shares_memory(feeds["a"], feeds["b"])
    assert np.array_equal(feeds["a"], again["a"])
    assert not np.array_equal(feeds["a"], other["a"])


@pytest.mark.parametrize(
    ("dtype", "span"),
    [
        ("int64", (-3, 5)),
        ("uint8", (0, 255)),
        ("int8", (-128, 127)),
        ("float32", (-1, 1)),
        ("float64", (2, 2)),
        ("bfloat16", (0, 1)),
        ("float16", (-4, 4)),
    ],
)
def test_values_are_in_range_and_reach_its_ends(dtype: str, span: tuple[int, int]) -> None:
    one = signature({"x": {"shape": [5000], "dtype": dtype, "range": span}})
    values = examples.make(one, {})["x"]
    assert values.dtype.name == dtype
    low, high = float(values.min()), float(values.max())
    assert span[0] <= low
    assert high <= span[1]
    if "int" in dtype:
        assert (low, high) == span


@pytest.mark.parametrize("dtype", ["int64", "bool"])
def test_masks_are_ones_then_zeros(dtype: str) -> None:
    tensor: dict[str, Any] = {"shape": [9, 6], "dtype": dtype}
    if dtype == "int64":
        tensor["range"] = [0, 1]
    mask = examples.make(signature({"m": tensor}), {})["m"].astype(int)
    assert (np.diff(mask, axis=1) <= 0).all()
    assert (mask[:, 0] == 1).all(), "no row is empty"
    assert (mask[::2] == 1).all()


def test_empty_and_scalar_shapes() -> None:
    inputs = {
        "a": {"shape": []},
        "b": {"shape": [0, 2], "dtype": "bool"},
        "c": {"shape": [], "dtype": "bool"},
    }
    feeds = examples.make(signature(inputs), {})
    assert [a.shape for a in feeds.values()] == [(), (0, 2), ()]


@given(st.lists(st.integers(1, 300), min_size=3, max_size=3).map(sorted))
def test_the_odd_size(sizes: list[int]) -> None:
    dim = Dim(min=sizes[0], typical=sizes[1], max=sizes[2])
    size = examples.odd_size(dim)
    assert dim.min <= size <= dim.max
    untried = set(range(dim.min, dim.max + 1)) - set(sizes)
    assert size in untried or not untried
    if any(one % 2 and one > 1 for one in untried):
        assert size % 2 == 1 or max(untried) > 4 * dim.typical
