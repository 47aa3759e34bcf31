"""The store: whole entries or none, whatever crashes, races, or fills up."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from megacompile.errors import MegacompileError
from megacompile.system.cache import INDEX, Cache, default_root, file_sha256, key_of

KEY = key_of("a", 1, {"b": [2]})


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


def write(folder: Path) -> None:
    (folder / "inner").mkdir()
    (folder / "inner" / "data").write_bytes(b"12345")


def left_behind(cache: Cache) -> list[Path]:
    return list((cache.root / "writing").glob("*"))


def test_put_and_get(cache: Cache) -> None:
    assert cache.get(KEY) is None
    stored = cache.put(KEY, {"step": 1}, write)
    found = cache.get(KEY, check=True)
    assert found == stored
    assert found is not None
    assert found.record == {"step": 1}
    assert (found.folder / "inner" / "data").read_bytes() == b"12345"
    assert left_behind(cache) == []


def test_keys() -> None:
    assert key_of({"a": 1, "b": 2}) == key_of({"b": 2, "a": 1})
    assert key_of("a", "b") != key_of("ab")
    assert key_of(1) != key_of("1")


def test_a_failed_write_leaves_nothing(cache: Cache) -> None:
    def fails(folder: Path) -> None:
        write(folder)
        raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError, match="in the middle"):
        cache.put(KEY, {}, fails)
    assert cache.get(KEY) is None
    assert left_behind(cache) == []


@pytest.mark.parametrize("damage", ["shorter", "missing", "index", "no sizes", "list"])
def test_a_damaged_entry_is_removed(damage: str, cache: Cache) -> None:
    folder = cache.put(KEY, {}, write).folder
    data, index = folder / "inner" / "data", folder / INDEX
    {
        "shorter": lambda: data.write_bytes(b"123"),
        "missing": data.unlink,
        "index": lambda: index.write_text("{"),
        "no sizes": lambda: index.write_text('{"files": {}, "record": {}}'),
        "list": lambda: index.write_text("[]"),
    }[damage]()
    assert cache.get(KEY) is None
    cache.put(KEY, {"again": True}, write)
    found = cache.get(KEY, check=True)
    assert found is not None
    assert found.record == {"again": True}


def test_changed_bytes_of_the_same_size_are_found_when_asked(cache: Cache) -> None:
    (cache.put(KEY, {}, write).folder / "inner" / "data").write_bytes(b"54321")
    assert cache.get(KEY) is not None
    assert cache.get(KEY, check=True) is None
    assert cache.get(KEY) is None


def test_a_folder_without_an_index_does_not_stand_in_the_way(cache: Cache) -> None:
    cache.folder(KEY).mkdir(parents=True)
    (cache.folder(KEY) / "rest").write_text("of a removal that was killed")
    assert cache.get(KEY) is None
    cache.put(KEY, {}, write)
    assert cache.get(KEY, check=True) is not None


def test_the_first_of_two_writers_stands(cache: Cache) -> None:
    def slow(folder: Path) -> None:
        write(folder)
        cache.put(KEY, {"first": True}, write)

    cache.put(KEY, {"first": False}, slow)
    found = cache.get(KEY, check=True)
    assert found is not None
    assert found.record == {"first": True}
    assert left_behind(cache) == []


RACE = """
import sys, time
from pathlib import Path
from megacompile.system.cache import Cache
cache, start = Cache(Path(sys.argv[1])), float(sys.argv[2])
def write(folder):
    (folder / "data").write_text("x" * 100_000)
time.sleep(max(0.0, start - time.time()))
for number in range(30):
    cache.put(f"key{number:037d}", {"by": sys.argv[3]}, write)
    assert cache.get(f"key{number:037d}", check=True) is not None
"""


def test_two_processes_write_the_same_keys(cache: Cache) -> None:
    import time

    start = str(time.time() + 1.0)
    both = [
        subprocess.Popen([sys.executable, "-c", RACE, str(cache.root), start, name])
        for name in "ab"
    ]
    assert [one.wait() for one in both] == [0, 0]
    assert len(cache.entries()) == 30
    assert left_behind(cache) == []


def test_leftovers_of_dead_processes_are_removed(cache: Cache) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    for owner in (dead.pid, os.getpid()):
        (cache.root / "writing" / f"{owner}-abc").mkdir(parents=True)
    cache.remove_leftovers()
    assert [p.name for p in left_behind(cache)] == [f"{os.getpid()}-abc"]


def test_prune_removes_what_was_unused_for_longest(cache: Cache) -> None:
    for age, key in enumerate(["a" * 40, "b" * 40, "c" * 40]):
        index = cache.put(key, {}, write).folder / INDEX
        os.utime(index, (1000 + age, 1000 + age))
    assert cache.get("a" * 40) is not None  # used now
    assert cache.prune(10) == (1, 5)
    assert [cache.get(k * 40) is not None for k in "abc"] == [True, False, True]
    assert cache.prune(10) == (0, 0)
    assert cache.prune(0) == (2, 10)
    assert cache.entries() == []


def test_a_full_disk_is_said_so(cache: Cache) -> None:
    def full(folder: Path) -> None:
        write(folder)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder / "big"))

    with pytest.raises(MegacompileError, match="the disk is full") as caught:
        cache.put(KEY, {}, full)
    assert "cache --prune" in str(caught.value)
    assert left_behind(cache) == []


def test_a_disk_that_is_really_full() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full")

    def full(folder: Path) -> None:
        (folder / "data").symlink_to("/dev/full")
        with open(folder / "data", "wb") as stream:
            stream.write(b"x" * 10)

    with pytest.raises(MegacompileError, match="the disk is full"):
        Cache(Path(os.environ.get("TMPDIR", "/tmp")) / f"cache-{os.getpid()}").put(KEY, {}, full)


def test_a_root_that_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(MegacompileError, match="writing failed"):
        Cache(tmp_path / "file").put(KEY, {}, write)


def test_the_record_is_plain_data(cache: Cache) -> None:
    folder = cache.put(KEY, {"a": [1, None]}, write).folder
    assert json.loads((folder / INDEX).read_text())["record"] == {"a": [1, None]}


def test_the_place_is_the_systems_unless_it_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MEGACOMPILE_CACHE", str(tmp_path))
    assert default_root() == tmp_path
    monkeypatch.delenv("MEGACOMPILE_CACHE")
    assert default_root().name == "megacompile"
    assert default_root().is_absolute()


def test_a_hash_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    assert file_sha256(tmp_path / "a").startswith("ba7816bf8f01cfea")
