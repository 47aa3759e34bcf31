"""Whatever holds samples, taken apart into single ones, or refused with the place named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from megacompile.errors import DataError
from megacompile.training.data.samples import (
    check_rows,
    is_numbered,
    is_sample_stream,
    open_source,
    single_samples,
)


class Pairs(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> Any:
        return torch.full((2,), float(index)), index


class Stream(torch.utils.data.IterableDataset[Any]):
    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> Any:
        raise NotImplementedError

    def __iter__(self) -> Any:
        return iter([{"x": np.zeros(2), "y": 0}, {"x": np.ones(2), "y": 1}])


PIECES = [{"x": np.zeros((1, 2)), "y": np.array([0])}, {"x": np.ones((1, 2)), "y": np.array([1])}]


def plain(samples: Any) -> list[dict[str, Any]]:
    return [{name: array.tolist() for name, array in one.items()} for one in samples]


def test_what_is_numbered_and_what_is_a_stream() -> None:
    assert is_numbered(Pairs())
    assert is_sample_stream(Stream())
    for other in (PIECES, tuple(PIECES), PIECES[0], Stream(), Pairs, iter(PIECES)):
        assert not is_numbered(other)
    for other in (PIECES, Pairs(), Stream):
        assert not is_sample_stream(other)


@pytest.mark.parametrize(
    ("source", "names"),
    [
        (Pairs(), ["x", "y"]),
        (Stream(), []),
        (PIECES, []),
        ({"x": np.array([[0, 0], [1, 1]]), "y": np.arange(2)}, []),
        ([{**one, "more": np.zeros(1)} for one in PIECES], ["x", "y"]),
    ],
)
def test_every_sample_once_and_in_order(source: Any, names: list[str]) -> None:
    assert plain(single_samples(source, "data", names)) == [
        {"x": [0, 0], "y": 0},
        {"x": [1, 1], "y": 1},
    ]


@pytest.mark.parametrize(
    ("source", "names", "words"),
    [
        (Pairs(), [], ["sample 0 of data is no dict", "tuple of 2 members and 0 names"]),
        ([{}], [], ["piece 0 of data has no entries"]),
        (PIECES, ["z"], ["piece 0 of data has no entry 'z'"]),
        ([{"x": [[1], [1, 2]]}], [], ["piece 0 of data can't be made into arrays"]),
        ([{"x": 1}], [], ["'x' in piece 0 of data has no axis of samples"]),
    ],
)
def test_what_can_not_be_taken_apart_is_named(
    source: Any, names: list[str], words: list[str]
) -> None:
    with pytest.raises(DataError) as caught:
        list(single_samples(source, "data", names))
    for word in words:
        assert word in str(caught.value)


def test_rows_are_the_same_in_all_entries() -> None:
    assert check_rows({"x": np.zeros((3, 2)), "y": torch.zeros(3)}, "data") == 3
    for other in (np.zeros(4), np.zeros(0)):
        with pytest.raises(DataError, match="different numbers of samples, or none"):
            check_rows({"x": other, "y": np.zeros(0)}, "data")


SOURCES = """
class Callable:
    def __iter__(self): return iter([1])
    def __call__(self): raise AssertionError("data is not called")
data = Callable()
def function(): return [2]
class Kind:
    def __init__(self): self.items = [3]
    def __iter__(self): return iter(self.items)
def number(): return 4
"""


@pytest.mark.parametrize(("name", "expected"), [("data", [1]), ("function", [2]), ("Kind", [3])])
def test_a_hook_is_data_or_gives_it(name: str, expected: list[int], tmp_path: Path) -> None:
    (tmp_path / "s.py").write_text(SOURCES)
    assert list(open_source(f"s.py:{name}", tmp_path, "data")) == expected


def test_a_hook_that_gives_no_data_is_named(tmp_path: Path) -> None:
    (tmp_path / "s.py").write_text(SOURCES)
    with pytest.raises(DataError, match=r"data gives no batches(.|\n)*got: int"):
        open_source("s.py:number", tmp_path, "data")
