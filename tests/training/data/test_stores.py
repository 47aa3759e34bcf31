"""Stored arrays and databases as datasets, and what tells one from another."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
import torch

from megacompile.errors import DataError
from megacompile.training.batches import Batches
from megacompile.training.data.stores import open_dataset, stamp
from tests.training.toy import make_train


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
    [
        ("npz:daat.npz", "data.npz"),
        ("npz:data.npz", "different lengths"),
        ("npz:text.npz", "can't be read"),
        ("arrays:nothing", "no such folder"),
        ("arrays:.", "no array"),
    ],
)
def test_stored_arrays_that_can_not_be_used(tmp_path: Path, reference: str, words: str) -> None:
    np.savez(tmp_path / "data.npz", x=np.zeros(3), y=np.zeros(4))
    (tmp_path / "text.npz").write_text("no archive")
    train = make_train(batches=reference, batch_size=4, accumulate=1)
    with pytest.raises(DataError) as caught:
        next(iter(Batches(train, tmp_path, seed=0)))
    assert words in str(caught.value)


def test_near_names_of_a_database_that_is_not_there(place: Path) -> None:
    with pytest.raises(DataError, match="did you mean 'data'"):
        open_dataset("lmdb", place.parent / "daat", False)


def test_other_stored_data_has_another_stamp(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros(3))
    before = stamp("npz", tmp_path / "a.npz")
    assert stamp("npz", tmp_path / "a.npz") == before
    time.sleep(0.02)
    np.savez(tmp_path / "a.npz", x=np.ones(3))
    assert stamp("npz", tmp_path / "a.npz") != before
    assert stamp("lmdb", tmp_path / "nothing") == stamp("arrays", tmp_path / "nothing/x") == []
