"""LMDB databases read in any process; what is damaged is named."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import pickle
import struct
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from megacompile.errors import DataError
from megacompile.training.batches import Batches
from megacompile.training.data.lmdb_format import DATABASE, HEADER, key_of_sample
from megacompile.training.data.lmdb_store import LmdbSamples
from megacompile.training.data.lmdb_writer import write_lmdb
from megacompile.training.data.stores import stamp
from tests.training.data.stored import same, samples
from tests.training.toy import make_train

lmdb = pytest.importorskip("lmdb")


def change(place: Path, key: bytes, value: bytes | None) -> None:
    """Put or (None) remove a record behind the library's back."""
    with (
        lmdb.open(str(place), lock=False, map_size=2**24) as environment,
        environment.begin(write=True) as transaction,
    ):
        if value is None:
            transaction.delete(key)
        else:
            transaction.put(key, value)
    size = environment_pages(place) * os.sysconf("SC_PAGESIZE")
    if (place / DATABASE).stat().st_size < size:
        os.truncate(place / DATABASE, size)


def environment_pages(place: Path) -> int:
    with lmdb.open(str(place), lock=False, readonly=True) as environment:
        return int(environment.info()["last_pgno"]) + 1


def record_of(place: Path, key: bytes) -> bytes:
    with (
        lmdb.open(str(place), lock=False, readonly=True) as environment,
        environment.begin() as transaction,
    ):
        return bytes(transaction.get(key))


def test_it_is_a_sequence(place: Path) -> None:
    found = LmdbSamples(place)
    assert same(found[-1], found[9])
    assert [int(s["y"]) for s in found.__getitems__([3, 1])] == [3, 1]
    for index in (10, -11):
        with pytest.raises(IndexError):
            found[index]
    found[0]["x"][:] = 7  # a copy: the database's memory can't be written
    assert found[0]["x"][0, 0] == 0


def test_two_of_one_database_share_what_is_open(place: Path) -> None:
    one, other = LmdbSamples(place), LmdbSamples(place / ".." / "data")
    assert same(one[1], other[1])
    assert one._database is other._database


def test_each_process_opens_it_for_itself(place: Path) -> None:
    found = LmdbSamples(place)
    assert int(found[4]["y"]) == 4  # open here before the fork
    context = multiprocessing.get_context("fork")
    queue: Any = context.SimpleQueue()
    children = [context.Process(target=lambda n=n: queue.put(int(found[n]["y"]))) for n in (2, 7)]
    for child in children:
        child.start()
    assert sorted(queue.get() for _ in children) == [2, 7]
    for child in children:
        child.join()
        assert child.exitcode == 0
    assert int(found[5]["y"]) == 5
    again = pickle.loads(pickle.dumps(found))
    assert again._database is None
    assert int(again[6]["y"]) == 6


def test_batches_are_the_same_with_workers_and_preloaded(place: Path) -> None:
    train = make_train(batches="lmdb:data", batch_size=4, accumulate=1)
    found = []
    for options in ({}, {"workers": 2}, {"preload": True}):
        batches = Batches(train.model_copy(update=options), place.parent, seed=3)
        found.append([b["y"].tolist() for b in itertools.islice(batches, 6)])
        first = next(iter(batches))
        assert first["low"].dtype == torch.bfloat16
        assert torch.equal(first["x"][:, 0].to(torch.bfloat16), first["low"])
    assert found[0] == found[1] == found[2]
    assert sorted(itertools.chain(*found[0][:5])) == sorted([*range(10)] * 2)


def cut(place: Path) -> None:
    os.truncate(place / DATABASE, (place / DATABASE).stat().st_size // 2)


def scribble(place: Path) -> None:
    (place / DATABASE).write_bytes(np.random.default_rng(0).bytes(20_000))


def flip(place: Path) -> None:
    record = bytearray(record_of(place, key_of_sample(3)))
    record[-1] ^= 1
    change(place, key_of_sample(3), bytes(record))


def foreign(place: Path) -> None:
    change(place, HEADER, None)


def newer(place: Path) -> None:
    change(place, HEADER, record_of(place, HEADER).replace(b'"version": 1', b'"version": 2'))


def header(place: Path) -> None:
    change(place, HEADER, b'{"format": "megacompile-samples", "version": 1}')


def hollow(place: Path) -> None:
    change(place, HEADER, record_of(place, HEADER).replace(b'"samples": 10', b'"samples": 0'))


def missing(place: Path) -> None:
    change(place, key_of_sample(3), None)


def axes(place: Path) -> None:
    """A record whose checksum is right and whose content is not."""
    body = b"\xff" + record_of(place, key_of_sample(3))[5:]
    change(place, key_of_sample(3), struct.pack("<I", zlib.crc32(body)) + body)


def gone(place: Path) -> None:
    (place / DATABASE).unlink()


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (cut, ["is cut off", "bytes", "copy it again"]),
        (scribble, ["can't be read", "not an LMDB file", "write it again"]),
        (flip, ["sample 3 is damaged", "checksum"]),
        (foreign, ["another program", "megacompile write-lmdb"]),
        (newer, ["another version", "expected: 1", "got: 2"]),
        (header, ["header", "damaged", "KeyError"]),
        (hollow, ["holds no sample"]),
        (missing, ["sample 3 of 10 is missing"]),
        (axes, ["sample 3 is damaged"]),
        (gone, ["no LMDB database", f"no {DATABASE} in it"]),
    ],
)
def test_damage_is_named(damage: Any, words: list[str], place: Path) -> None:
    damage(place)
    with pytest.raises(DataError) as caught:
        list(LmdbSamples(place))  # type: ignore[call-overload]
    for word in [str(place), *words]:
        assert word in str(caught.value)


def test_replaced_while_it_is_read(place: Path) -> None:
    found = LmdbSamples(place)
    assert int(found[0]["y"]) == 0
    before = stamp("lmdb", place)
    write_lmdb(samples(5), place, overwrite=True)
    assert int(found[1]["y"]) == 1, "what is open stays as it was"
    assert len(LmdbSamples(place)) == 5
    assert stamp("lmdb", place) != before
    with pytest.raises(DataError, match="replaced while it was read"):
        found[0]


def test_without_the_library(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lmdb", None)
    for action in (lambda: LmdbSamples(place), lambda: write_lmdb(samples(), place / "more")):
        with pytest.raises(DataError, match=r"pip install 'megacompile\[data\]'"):
            action()
