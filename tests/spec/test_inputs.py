"""What the model takes: sizes, tensors, and how they nest."""

from __future__ import annotations

from pathlib import Path

import pytest

from megacompile.spec.inputs import Dim, TensorInput, batch_of

from .toy import GOOD, assert_problems, read


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("typical: 2", "typical: 9", ["4:10: min <= typical <= max is needed; got 1, 9, 4"]),
        ("float32}", "float32, range: [2, 1]}", ["6:6: range needs low <= high"]),
        ("float32}", "float32, optional: true}", ["6:6: an optional input needs `default`"]),
        ("float32}", "flot32}", ["6:33: input should be 'float64', 'float32'"]),
        ("min: 1", "min: 0", ["greater than or equal to 1"]),
        (
            "x: {shape: [batch, 3], dtype: float32}",
            "x: {tuple: [{shape: [batch, -1]}]}",
            ["a size is 0 or more"],
        ),
    ],
)
def test_a_problem_and_its_line(old: str, new: str, expected: list[str], tmp_path: Path) -> None:
    assert_problems(old, new, expected, tmp_path)


def test_leaves_are_named_depth_first(tmp_path: Path) -> None:
    nested = "x: {tuple: [{shape: [batch]}, {dict: {k: {shape: [2]}}}]}\n  n: {value: 3}"
    spec = read(GOOD.replace("x: {shape: [batch, 3], dtype: float32}", nested), tmp_path).spec
    assert spec is not None
    assert list(spec.tensors()) == ["x.0", "x.1.k"]


def test_an_integer_is_a_dim_that_never_changes() -> None:
    assert Dim.model_validate(7) == Dim(min=7, typical=7, max=7)
    assert Dim.model_validate(7).fixed
    assert not Dim(min=1, typical=1, max=2).fixed


@pytest.mark.parametrize(("shape", "batch"), [(["b", 3], 5), ([4, 3], 4), ([], 1)])
def test_throughput_counts_the_first_axis_of_the_first_input(
    shape: list[str | int], batch: int
) -> None:
    tensors = {"x": TensorInput(shape=shape), "y": TensorInput(shape=[9])}
    assert batch_of(tensors, {"b": 5}) == batch
