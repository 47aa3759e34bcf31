"""Sizes that a model takes are found by running it at guessed ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from megacompile.commands import sizes
from megacompile.commands.sizes import Found, Search, Tensor
from megacompile.models.signature import Signature

VECTOR = Tensor("x", ("batch", "seq", 4))


class Model:
    """A form that refuses some inputs."""

    def __init__(self, takes: Callable[[tuple[int, ...]], bool]) -> None:
        self.takes = takes

    def run(self, feeds: dict[str, np.ndarray[Any, Any]]) -> None:
        shape = feeds["x"].shape
        if not self.takes(shape):
            raise ValueError(f"no such size: {shape}\nand more")


def search(takes: Callable[[tuple[int, ...]], bool], *guesses: Tensor) -> tuple[Search, Any]:
    def load(signature: Signature) -> Any:
        return Model(takes)

    one = Search(load)
    return one, one.run([list(guesses)])


def test_the_widest_ranges_that_work() -> None:
    _, found = search(lambda shape: shape[1] <= 200, VECTOR)
    assert found == Found((VECTOR,), {"batch": (1, 4, 16), "seq": (1, 64, 128)}, True)


def test_a_size_that_can_not_vary_is_fixed() -> None:
    _, found = search(lambda shape: shape[1] == 16, VECTOR)
    assert found.tensors == (Tensor("x", ("batch", 16, 4)),)
    assert found.dims == {"batch": (1, 4, 16)}


def test_where_the_typical_size_fails_all_are_fixed_but_the_batch() -> None:
    """Of each size by itself only the extremes are tried; all together at typical sizes too."""
    _, found = search(lambda shape: shape[1] != 64, VECTOR)
    assert found.tensors == (Tensor("x", ("batch", 32, 4)),)
    assert found.dims == {"batch": (1, 4, 16)}


def test_the_first_guess_that_works_is_taken() -> None:
    wrong, right = Tensor("x", ("batch", 3)), Tensor("x", ("batch", 4))
    _, found = search(lambda shape: shape[-1] == 4, wrong, right)
    assert found.tensors == (right,)


def test_nothing_works_and_the_last_reason_is_kept() -> None:
    one, found = search(lambda shape: False, VECTOR)
    assert found is None
    assert str(one.last_error).startswith("no such size: (2, ")
    assert "\n" not in str(one.last_error)


def test_guesses_that_would_fill_the_memory_are_not_run() -> None:
    called: list[tuple[int, ...]] = []
    one, found = search(lambda shape: not called.append(shape), Tensor("x", ("batch", 2**24)))
    assert found is None
    assert called == []
    assert one.last_error is None


@pytest.mark.parametrize(
    ("name", "size", "slow", "first"),
    [
        ("batch", 2, False, (1, 4, 16)),
        ("batch", 2, True, (1, 1, 2)),
        ("height", 32, False, (16, 32, 48)),
        ("seq", 32, False, (1, 64, 512)),
        ("seq", 4096, False, (1, 4096, 4096)),
    ],
)
def test_the_widest_range_is_tried_first(
    name: str, size: int, slow: bool, first: tuple[int, int, int]
) -> None:
    assert sizes._ranges(name, size, slow)[0] == first
