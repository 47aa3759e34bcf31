"""Sizes of outputs in terms of the spec's dims."""

from __future__ import annotations

from typing import Any

import numpy as np

from megacompile.models.comparison import InputSet
from megacompile.models.shapes import Size, output_shapes
from megacompile.models.signature import Signature
from megacompile.spec import Dim, TensorInput

DIMS = {"batch": Dim(min=1, typical=2, max=4), "seq": Dim(min=3, typical=5, max=9)}
INPUTS = {"x": TensorInput(shape=["batch", "seq"])}


def shapes(*given: tuple[tuple[int, int], tuple[int, ...]]) -> list[Size]:
    """The output's shape when inputs of the first shapes gave outputs of the second."""
    signature = Signature(INPUTS, DIMS).with_outputs(["y"], {"tensor": "y"}, ["float32"])
    sets = [InputSet("", {"x": zeros(*size)}, {"y": zeros(*shape)}) for size, shape in given]
    return output_shapes(signature, sets)["y"]


def zeros(*shape: int) -> np.ndarray[Any, Any]:
    return np.zeros(shape, np.float32)


def test_dims_and_numbers_and_what_varies_otherwise() -> None:
    found = shapes(((1, 3), (1, 3, 8, 6)), ((2, 5), (2, 5, 8, 10)), ((4, 9), (4, 9, 8, 18)))
    assert found == ["batch", "seq", 8, None]


def test_a_size_that_never_changes_is_a_number() -> None:
    assert shapes(((2, 5), (2, 5)), ((2, 9), (2, 9))) == [2, "seq"], "batch was 2 both times"


def test_ranks_that_differ_say_nothing() -> None:
    assert shapes(((1, 3), (3,)), ((2, 5), (2, 5))) == [None, None]
