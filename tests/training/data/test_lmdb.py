"""LMDB databases: what goes in comes out, in any process; what is damaged is named."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import pickle
import signal
import string
import struct
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from megacompile.errors import DataError, MegacompileError
from megacompile.models.tensors import Array, numpy_dtype
from megacompile.training.batches import Batches
from megacompile.training.data.lmdb_store import (
    DATABASE,
    DTYPES,
    HEADER,
    LmdbSamples,
    key_of_sample,
)
from megacompile.training.data.lmdb_writer import write_lmdb
from megacompile.training.data.stores import open_dataset, stamp
from megacompile.training.data.writing import write_source
from tests.training.toy import make_train

lmdb = pytest.importorskip("lmdb")


def samples(count: int = 10) -> Iterator[dict[str, Array]]:
    for number in range(count):
        x = np.arange(6, dtype=np.float32).reshape(2, 3) + number
        yield {"x": x, "low": x[0].astype(ml_dtypes.bfloat16), "y": np.asarray(number)}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    write_lmdb(samples(), tmp_path / "data")
    return tmp_path / "data"


def same(one: dict[str, Array], other: dict[str, Array]) -> bool:
    return set(one) == set(other) and all(
        one[n].dtype == other[n].dtype
        and one[n].shape == other[n].shape
        and one[n].tobytes() == other[n].tobytes()
        for n in one
    )


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
    size = (environment_pages(place)) * os.sysconf("SC_PAGESIZE")
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


@st.composite
def any_samples(draw: st.DrawFn) -> list[dict[str, Array]]:
    """Up to six samples of the same names and dtypes, with shapes of their own."""
    names = draw(
        st.lists(
            st.text(string.printable, min_size=1, max_size=8), min_size=1, max_size=3, unique=True
        )
    )
    dtypes = {name: draw(st.sampled_from(DTYPES)) for name in names}
    count = draw(st.integers(1, 6))
    shapes = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)
    found = []
    for _ in range(count):
        sample = {}
        for name, dtype in dtypes.items():
            shape = draw(shapes)
            size = int(np.prod(shape, dtype=int)) * numpy_dtype(dtype).itemsize
            bits = draw(st.binary(min_size=size, max_size=size))
            if dtype == "bool":
                bits = bytes(b & 1 for b in bits)
            array = np.frombuffer(bits, numpy_dtype(dtype)).reshape(shape)
            if draw(st.booleans()):
                array = np.asfortranarray(array)
            sample[name] = array
        found.append(sample)
    return found


@settings(max_examples=60, deadline=None)
@given(given_samples=any_samples())
def test_what_goes_in_comes_out(
    given_samples: list[dict[str, Array]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    place = tmp_path_factory.mktemp("any") / "data"
    write_lmdb(given_samples, place, map_bytes=2**16)
    found = LmdbSamples(place)
    assert len(found) == len(given_samples)
    for before, after in zip(given_samples, found, strict=True):  # type: ignore[call-overload]
        assert same(before, after)
    for entry in found.header.entries:
        shapes = {sample[entry.name].shape for sample in given_samples}
        assert entry.shape == (shapes.pop() if len(shapes) == 1 else None)


def test_numbers_of_another_byte_order(tmp_path: Path) -> None:
    write_lmdb([{"x": np.arange(3, dtype=">f4")}], tmp_path / "data")
    found = LmdbSamples(tmp_path / "data")[0]["x"]
    assert found.tolist() == [0.0, 1.0, 2.0]
    assert found.dtype.isnative


def test_it_grows_beyond_its_first_map(tmp_path: Path) -> None:
    large = [{"x": np.full(50_000, number)} for number in range(60)]
    write_lmdb(large, tmp_path / "data", map_bytes=2**16)
    found = LmdbSamples(tmp_path / "data")
    assert [int(found[n]["x"][-1]) for n in range(60)] == list(range(60))
    assert (tmp_path / "data" / DATABASE).stat().st_size > 60 * 400_000


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
    import zlib

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


def test_near_names_of_a_database_that_is_not_there(place: Path) -> None:
    with pytest.raises(DataError, match="did you mean 'data'"):
        open_dataset("lmdb", place.parent / "daat", False)


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


ODD: list[tuple[list[dict[str, Any]], list[str]]] = [
    ([], ["no sample"]),
    ([{"x": np.zeros(2)}, {"z": np.zeros(2)}], ["sample 1", "expected: x float64", "got: z"]),
    ([{"x": np.zeros(2)}, {"x": np.zeros(2, int)}], ["sample 1", "float64", "int64"]),
    ([{"x": np.asarray("text")}], ["'x' of sample 0", "no numbers"]),
    ([{"x": np.asarray([None, "a"])}], ["'x' of sample 0", "object"]),
]


@pytest.mark.parametrize(("given_samples", "words"), ODD)
def test_samples_that_can_not_be_stored(
    given_samples: list[dict[str, Any]], words: list[str], tmp_path: Path
) -> None:
    with pytest.raises(DataError) as caught:
        write_lmdb(given_samples, tmp_path / "data")
    for word in words:
        assert word in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_nothing_of_the_user_is_overwritten(place: Path) -> None:
    with pytest.raises(DataError, match="--overwrite"):
        write_lmdb(samples(), place)
    (place / "notes.txt").write_text("mine")
    with pytest.raises(DataError, match="is no LMDB database and is not overwritten"):
        write_lmdb(samples(), place, overwrite=True)
    (place.parent / "file").write_text("mine")
    with pytest.raises(DataError, match="not overwritten"):
        write_lmdb(samples(), place.parent / "file", overwrite=True)
    assert len(LmdbSamples(place)) == 10


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    def nested() -> Iterator[dict[str, Array]]:
        yield next(samples())
        with pytest.raises(DataError, match="another process is writing"):
            write_lmdb(samples(), tmp_path / "data")

    write_lmdb(nested(), tmp_path / "data")
    assert [p.name for p in tmp_path.iterdir()] == ["data"]
    assert len(LmdbSamples(tmp_path / "data")) == 1


KILLED = """
import sys, time
import numpy as np
from pathlib import Path
from megacompile.training.data.lmdb_writer import write_lmdb
def endless():
    while True:
        yield {"x": np.zeros(100_000)}
def told(number):
    if number == 200:
        print("running", flush=True)
        time.sleep(60)
write_lmdb(endless(), Path(sys.argv[1]), told=told)
"""


def test_a_killed_writer_leaves_no_database(tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILLED, str(tmp_path / "data")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"running\n"
        assert (tmp_path / ".data.partial" / DATABASE).stat().st_size > 10**7
        writer.send_signal(signal.SIGKILL)
    assert not (tmp_path / "data").exists()
    write_lmdb(samples(), tmp_path / "data")
    assert [p.name for p in tmp_path.iterdir()] == ["data"]
    assert len(LmdbSamples(tmp_path / "data")) == 10


FULL = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, 2_000_000))
from megacompile.commands.cli import main
main(sys.argv[1:])
"""


def test_a_disk_without_space(tmp_path: Path) -> None:
    """The system refuses to let the file grow, as a full disk does."""
    np.savez(tmp_path / "data.npz", x=np.zeros((50, 100_000)))
    done = subprocess.run(
        [sys.executable, "-c", FULL, "write-lmdb", f"npz:{tmp_path}/data.npz", f"{tmp_path}/out"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert "can't be written" in done.stderr
    assert "free some space" in done.stderr
    assert "nothing was left behind" in done.stderr
    assert "Traceback" not in done.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["data.npz"]


SOURCES = """
import numpy as np
import torch
class Pairs(torch.utils.data.Dataset):
    def __len__(self):
        return 7
    def __getitem__(self, index):
        return torch.full((2,), float(index)), index
class Singles(torch.utils.data.IterableDataset):
    def __len__(self):
        return 7
    def __iter__(self):
        return ({"x": np.full(2, float(n), np.float32), "y": n} for n in range(7))
def pairs():
    return Pairs()
singles = Singles()
def loader():
    return torch.utils.data.DataLoader(Pairs(), batch_size=3)
def pieces():
    for start in (0, 3, 6):
        rows = np.arange(start, min(start + 3, 7))
        yield {"x": np.repeat(rows[:, None], 2, 1).astype(np.float32), "y": rows, "more": rows}
def raising():
    yield {"x": np.zeros((2, 2))}
    raise KeyError("half way")
def uneven():
    yield {"x": np.zeros((2, 2)), "y": np.zeros(3)}
"""


@pytest.mark.parametrize(
    ("name", "names"),
    [("pairs", ["x", "y"]), ("singles", []), ("loader", ["x", "y"]), ("pieces", ["x", "y"])],
)
@pytest.mark.parametrize("limit", [None, 4])
def test_sources(name: str, names: list[str], limit: int | None, tmp_path: Path) -> None:
    (tmp_path / "source.py").write_text(SOURCES)
    events = []
    write_source(
        f"source.py:{name}",
        tmp_path,
        tmp_path / "data",
        lambda event, **data: events.append((event, data)),
        names,
        limit,
    )
    found = LmdbSamples(tmp_path / "data")
    assert [int(s["y"]) for s in found] == list(range(limit or 7))  # type: ignore[attr-defined]
    assert [s["x"].tolist() for s in found][-1] == [(limit or 7) - 1.0] * 2  # type: ignore[attr-defined]
    assert set(found[0]) == {"x", "y"}
    assert found[0]["x"].dtype == np.float32
    if limit or name == "pairs":
        assert events[-1][0] == "bar"
        assert events[-1][1]["done"] == events[-1][1]["total"] == (limit or 7)


@pytest.mark.parametrize(
    ("reference", "names", "words"),
    [
        ("source.py:pairs", [], ["sample 0", "is no dict", "--names"]),
        ("source.py:pairs", ["x"], ["2 members and 1 names"]),
        ("source.py:pieces", ["x", "mor"], ["no entry 'mor'", "did you mean 'more'"]),
        ("source.py:raising", [], ["source.py:", "KeyError", "half way", "piece 1"]),
        ("source.py:uneven", [], ["different numbers of samples", "x 2, y 3"]),
        ("source.py:piecs", [], ["did you mean 'pieces'"]),
        ("npz:nothing.npz", [], ["no such file"]),
    ],
)
def test_sources_that_can_not_be_used(
    reference: str, names: list[str], words: list[str], tmp_path: Path
) -> None:
    (tmp_path / "source.py").write_text(textwrap.dedent(SOURCES))
    with pytest.raises(MegacompileError) as caught:
        write_source(reference, tmp_path, tmp_path / "data", lambda event, **data: None, names)
    for word in words:
        assert word in str(caught.value)
    assert [p.name for p in tmp_path.iterdir() if p.name != "__pycache__"] == ["source.py"]


def test_arrays_are_written_from_where_they_lie(tmp_path: Path) -> None:
    (tmp_path / "arrays").mkdir()
    np.save(tmp_path / "arrays/x.npy", np.arange(12.0).reshape(4, 3))
    np.save(tmp_path / "arrays/y.npy", np.arange(4, dtype=np.int16))
    before = {p.name: p.read_bytes() for p in (tmp_path / "arrays").iterdir()}
    write_source("arrays:arrays", tmp_path, tmp_path / "data", lambda event, **data: None)
    stored, arrays = (
        LmdbSamples(tmp_path / "data"),
        open_dataset("arrays", tmp_path / "arrays", False),
    )
    assert all(same(stored[n], arrays[n]) for n in range(4))
    assert {p.name: p.read_bytes() for p in (tmp_path / "arrays").iterdir()} == before


def test_other_stored_data_has_another_stamp(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros(3))
    before = stamp("npz", tmp_path / "a.npz")
    assert stamp("npz", tmp_path / "a.npz") == before
    time.sleep(0.02)
    np.savez(tmp_path / "a.npz", x=np.ones(3))
    assert stamp("npz", tmp_path / "a.npz") != before
    assert stamp("lmdb", tmp_path / "nothing") == stamp("arrays", tmp_path / "nothing/x") == []
