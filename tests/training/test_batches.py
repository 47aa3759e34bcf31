"""Batches out of whatever a hook gives: cut, joined, repeated, and refused with a reason."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch

from megacompile.errors import DataError
from megacompile.training.batches import Batches, split
from tests.training.toy import make_train

STREAM = """
import numpy as np
def batches():
    for start in range(0, 10, {step}):
        rows = np.arange(start, min(start + {step}, 10), dtype=np.int64)
        yield {{"x": rows[:, None] * 1.0, "y": rows}}
"""
DATASET = """
import os, signal
import torch
class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 10
    def __getitem__(self, index):
        {body}
        return {{"x": torch.tensor([float(index)]), "y": index}}
def batches():
    return Numbers()
"""


def made(tmp_path: Path, text: str, **changes: object) -> Batches:
    (tmp_path / "data.py").write_text(text)
    train = make_train(batches="data.py:batches", accumulate=1, **changes)
    return Batches(train, tmp_path, seed=0)


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


def test_a_worker_that_dies_is_named(tmp_path: Path) -> None:
    body = "os.kill(os.getpid(), signal.SIGKILL)"
    found = made(tmp_path, DATASET.format(body=body), batch_size=5, workers=1)
    with pytest.raises(DataError) as caught:
        next(iter(found))
    assert "worker process" in str(caught.value)
    assert "workers: 0" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("def batches():\n    return iter(())\n", "is empty"),
        ("def batches():\n    yield [1, 2]\n", "is no dict"),
        ("def batches():\n    yield {'x': 1.0}\n", "no axis of samples"),
        ("import numpy as np\ndef batches():\n    yield {'x': np.zeros(3), 'y': np.zeros(4)}\n",
         "different numbers of samples"),
        ("import numpy as np\ndef batches():\n    yield {'x': np.zeros(3)}\n"
         "    yield {'z': np.zeros(3)}\n", "changes its names"),
        ("def batches():\n    raise OSError('disk gone')\n", "disk gone"),
        ("def batches():\n    return 7\n", "gives no batches"),
    ],
)  # fmt: skip
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


@pytest.mark.parametrize("kind", ["npz", "arrays", "preloaded"])
def test_stored_arrays(tmp_path: Path, kind: str) -> None:
    x, y = np.arange(30.0, dtype=np.float32).reshape(10, 3), np.arange(10)
    if kind == "npz":
        np.savez(tmp_path / "data.npz", x=x, y=y)
    else:
        (tmp_path / "data").mkdir()
        np.save(tmp_path / "data/x.npy", x)
        np.save(tmp_path / "data/y.npy", y)
    reference = "npz:data.npz" if kind == "npz" else "arrays:data"
    train = make_train(batches=reference, batch_size=4, accumulate=1, preload=kind == "preloaded")
    batch = next(iter(Batches(train, tmp_path, seed=0)))
    assert batch["x"].shape == (4, 3)
    assert torch.equal(batch["x"], torch.from_numpy(x)[batch["y"]])


@pytest.mark.parametrize(
    ("reference", "words"),
    [("npz:daat.npz", "data.npz"), ("npz:data.npz", "different lengths"),
     ("npz:text.npz", "can't be read"), ("arrays:nothing", "no such folder"),
     ("arrays:.", "no array")],
)  # fmt: skip
def test_stored_arrays_that_can_not_be_used(tmp_path: Path, reference: str, words: str) -> None:
    np.savez(tmp_path / "data.npz", x=np.zeros(3), y=np.zeros(4))
    (tmp_path / "text.npz").write_text("no archive")
    train = make_train(batches=reference, batch_size=4, accumulate=1)
    with pytest.raises(DataError) as caught:
        next(iter(Batches(train, tmp_path, seed=0)))
    assert words in str(caught.value)


def test_split_gives_equal_pieces() -> None:
    pieces = split({"x": torch.arange(6), "y": torch.arange(12).reshape(6, 2)}, 3)
    assert [piece["x"].tolist() for piece in pieces] == [[0, 1], [2, 3], [4, 5]]
    assert pieces[1]["y"].tolist() == [[4, 5], [6, 7]]


FAULTS = {
    "yield {'x': np.zeros((2, 3)), 'y': np.zeros(2)}; yield {'x': np.zeros((2, 4)), 'y': "
    "np.zeros(2)}": ["changes the shape of 'x' within a batch", "[3]", "[4]"],
    "yield {'x': np.zeros((4, 3))}; yield {'x': np.zeros((4, 3), np.float32)}": [
        "changes the dtype of 'x'",
        "float64",
        "float32",
    ],
    "yield {'x': np.array(['a', 'b', 'c', 'd'])}": ["'x' in piece 0", "no array of numbers"],
}


@pytest.mark.parametrize("body", FAULTS)
def test_pieces_that_do_not_fit_are_named(tmp_path: Path, body: str) -> None:
    found = made(tmp_path, f"import numpy as np\ndef batches():\n    {body}\n", batch_size=4)
    with pytest.raises(DataError) as caught:
        list(itertools.islice(found, 2))
    for word in FAULTS[body]:
        assert word in str(caught.value)


def test_sizes_may_change_from_batch_to_batch(tmp_path: Path) -> None:
    text = "import numpy as np\ndef batches():\n    yield {'x': np.zeros((4, 3))}\n    " \
           "yield {'x': np.zeros((4, 5))}\n"  # fmt: skip
    found = made(tmp_path, text, batch_size=4)
    assert [batch["x"].shape[1] for batch in itertools.islice(found, 3)] == [3, 5, 3]
