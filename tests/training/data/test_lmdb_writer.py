"""Databases written whole or not at all: what goes in comes out, also when a writer is killed."""

from __future__ import annotations

import signal
import string
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from megacompile.errors import DataError
from megacompile.models.tensors import Array, numpy_dtype
from megacompile.training.data.lmdb_format import DATABASE, DTYPES
from megacompile.training.data.lmdb_store import LmdbSamples
from megacompile.training.data.lmdb_writer import write_lmdb
from tests.training.data.stored import same, samples

pytest.importorskip("lmdb")


@st.composite
def any_samples(draw: st.DrawFn) -> list[dict[str, Array]]:
    """Up to six samples of the same names and dtypes, with shapes of their own."""
    name = st.text(string.printable, min_size=1, max_size=8)
    names = draw(st.lists(name, min_size=1, max_size=3, unique=True))
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
    arguments = ["write-lmdb", f"npz:{tmp_path}/data.npz", f"{tmp_path}/out"]
    command = [sys.executable, "-c", FULL, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert "can't be written" in done.stderr
    assert "free some space" in done.stderr
    assert "nothing was left behind" in done.stderr
    assert "Traceback" not in done.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["data.npz"]
