"""Batches out of whatever a hook gives: cut, joined, repeated, and refused with a reason."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch

from megacompile.errors import DataError
from megacompile.training.batches import split
from tests.training.loaded import DATASET, made

STREAM = """
import numpy as np
def batches():
    for start in range(0, 10, {step}):
        rows = np.arange(start, min(start + {step}, 10), dtype=np.int64)
        yield {{"x": rows[:, None] * 1.0, "y": rows}}
"""


@pytest.mark.parametrize("step", [1, 3, 4, 10])
def test_pieces_of_any_size_become_batches_of_one(tmp_path: Path, step: int) -> None:
    found = made(tmp_path, STREAM.format(step=step), batch_size=4)
    rows = [batch["y"].tolist() for batch in itertools.islice(found, 5)]
    assert rows == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 0, 1], [2, 3, 4, 5], [6, 7, 8, 9]]


def test_every_iteration_starts_anew(tmp_path: Path) -> None:
    found = made(tmp_path, STREAM.format(step=3), batch_size=4)
    assert torch.equal(next(iter(found))["y"], next(iter(found))["y"])


def test_a_batch_may_be_larger_than_the_data(tmp_path: Path) -> None:
    found = made(tmp_path, STREAM.format(step=3), batch_size=25)
    assert next(iter(found))["y"].tolist() == [*range(10), *range(10), *range(5)]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_dataset_is_shuffled_with_the_seed_and_seen_whole(tmp_path: Path, workers: int) -> None:
    found = made(tmp_path, DATASET.format(body=""), batch_size=5, workers=workers)
    rows = [batch["y"].tolist() for batch in itertools.islice(found, 4)]
    assert sorted(rows[0] + rows[1]) == list(range(10))
    assert sorted(rows[2] + rows[3]) == list(range(10))
    assert rows[0] + rows[1] not in (list(range(10)), rows[2] + rows[3])
    assert [batch["y"].tolist() for batch in itertools.islice(found, 4)] == rows


SAMPLES = """
import torch
class Numbers(torch.utils.data.IterableDataset):
    def __len__(self):
        return 10
    def __iter__(self):
        return ({"x": torch.tensor([float(n)]), "y": n} for n in range(10))
def batches():
    return Numbers()
"""


def test_an_iterable_dataset_is_a_stream_of_single_samples(tmp_path: Path) -> None:
    found = made(tmp_path, SAMPLES, batch_size=4)
    rows = [batch["y"].tolist() for batch in itertools.islice(found, 3)]
    assert rows == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 0, 1]]
    assert next(iter(found))["x"].shape == (4, 1)
    with pytest.raises(DataError) as caught:  # each worker would give every sample
        next(iter(made(tmp_path, SAMPLES, batch_size=4, workers=2)))
    assert "`workers` needs a Dataset" in str(caught.value)
    assert "megacompile write-lmdb data.py:batches OUT" in str(caught.value)


def test_a_stream_that_can_be_read_once_is_named(tmp_path: Path) -> None:
    text = "import numpy as np\nbatches = ({'x': np.zeros(2)} for _ in range(3))\n"
    found = made(tmp_path, text, batch_size=6)
    stream = iter(found)
    assert len(next(stream)["x"]) == 6
    with pytest.raises(DataError, match="read only once"):
        next(stream)


def test_the_time_spent_waiting_is_told_apart_from_the_start(tmp_path: Path) -> None:
    found = made(tmp_path, DATASET.format(body="time.sleep(0.01)"), batch_size=5)
    stream = iter(found)
    next(stream)
    assert found.started > 0.04  # it sleeps for 0.05 s
    assert found.waited == 0.0
    next(stream)
    assert found.waited > 0.04
    assert found.taken == 2


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        (STREAM.format(step=3), {}, "return a Dataset"),
        (DATASET.format(body=""), {}, "`workers: 2`"),
        (DATASET.format(body=""), {"workers": 3}, "more than 3 `workers`"),
        (DATASET.format(body=""), {"preload": True}, "more than 0 `workers`"),
    ],
)
def test_what_to_do_when_a_step_waits(
    tmp_path: Path, text: str, options: dict[str, object], words: str
) -> None:
    found = made(tmp_path, text, batch_size=5, **options)
    next(iter(found))
    assert words in found.remedy()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("def batches():\n    return iter(())\n", "is empty"),
        ("def batches():\n    yield [1, 2]\n", "is no dict"),
        ("def batches():\n    yield {'x': 1.0}\n", "no axis of samples"),
        (
            "import numpy as np\ndef batches():\n    yield {'x': np.zeros(3), 'y': np.zeros(4)}\n",
            "different numbers of samples",
        ),
        (
            "import numpy as np\ndef batches():\n    yield {'x': np.zeros(3)}\n"
            "    yield {'z': np.zeros(3)}\n",
            "changes its names",
        ),
        ("def batches():\n    raise OSError('disk gone')\n", "disk gone"),
        ("def batches():\n    return 7\n", "gives no batches"),
    ],
)
def test_data_that_can_not_be_used_is_named(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(DataError) as caught:
        next(iter(made(tmp_path, text, batch_size=4)))
    assert words in str(caught.value)


def test_a_stream_can_not_have_workers(tmp_path: Path) -> None:
    for option in ({"workers": 2}, {"preload": True}):
        with pytest.raises(DataError, match="needs a Dataset"):
            next(iter(made(tmp_path, STREAM.format(step=3), batch_size=4, **option)))


def test_preloaded_samples_are_read_once(tmp_path: Path) -> None:
    body = "open(__file__ + '.log', 'a').write('x')"
    found = made(tmp_path, DATASET.format(body=body), batch_size=5, preload=True)
    plain = made(tmp_path, DATASET.format(body=body), batch_size=5)
    rows = [batch["y"].tolist() for batch in itertools.islice(found, 4)]
    assert len((tmp_path / "data.py.log").read_text()) == 10
    assert [batch["y"].tolist() for batch in itertools.islice(plain, 4)] == rows


def test_split_gives_equal_pieces() -> None:
    pieces = split({"x": torch.arange(6), "y": torch.arange(12).reshape(6, 2)}, 3)
    assert [piece["x"].tolist() for piece in pieces] == [[0, 1], [2, 3], [4, 5]]
    assert pieces[1]["y"].tolist() == [[4, 5], [6, 7]]


FAULTS = [
    (
        ["{'x': np.zeros((2, 3))}", "{'x': np.zeros((2, 4))}"],
        ["changes the shape of 'x' within a batch", "[3]", "[4]"],
    ),
    (
        ["{'x': np.zeros((4, 3))}", "{'x': np.zeros((4, 3), np.float32)}"],
        ["changes the dtype of 'x'", "float64", "float32"],
    ),
    (["{'x': np.array(['a', 'b', 'c', 'd'])}"], ["'x' in piece 0", "no array of numbers"]),
]


@pytest.mark.parametrize(("pieces", "words"), FAULTS)
def test_pieces_that_do_not_fit_are_named(
    tmp_path: Path, pieces: list[str], words: list[str]
) -> None:
    text = f"import numpy as np\nbatches = [{', '.join(pieces)}]\n"
    found = made(tmp_path, text, batch_size=4)
    with pytest.raises(DataError) as caught:
        list(itertools.islice(found, 2))
    for word in words:
        assert word in str(caught.value)


def test_sizes_may_change_from_batch_to_batch(tmp_path: Path) -> None:
    text = "import numpy as np\nbatches = [{'x': np.zeros((4, 3))}, {'x': np.zeros((4, 5))}]\n"
    found = made(tmp_path, text, batch_size=4)
    assert [batch["x"].shape[1] for batch in itertools.islice(found, 3)] == [3, 5, 3]
