"""Writes samples into an LMDB database, whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from megacompile.errors import DataError
from megacompile.models import Array
from megacompile.training.data.lmdb_format import (
    DATABASE,
    DTYPES,
    HEADER,
    Entry,
    Header,
    encode,
    import_lmdb,
    key_of_sample,
)

MAP_BYTES = 2**28  # address space only; it is doubled when it is full
COMMIT_BYTES = 2**24
COMMIT_SAMPLES = 4096


def write_lmdb(
    samples: Iterable[Mapping[str, Array]],
    out: Path,
    *,
    overwrite: bool = False,
    told: Callable[[int], None] = lambda number: None,
    map_bytes: int = MAP_BYTES,
) -> Header:
    """Write samples of equal names and dtypes; shapes may differ. `told` gets the number of
    samples taken so far.

    It is written into `.NAME.partial` beside `out` and renamed at the end: a database with that
    name is whole.

    Raises:
        DataError: `out` exists, a sample doesn't fit the first one or holds no numbers, there is
            no sample, or the disk is full. Nothing is left behind.
    """
    lmdb = import_lmdb()
    check_place(out, overwrite)
    with _partial(out) as folder:
        try:
            header = _fill(lmdb, samples, folder, told, map_bytes)
            if out.exists():
                os.replace(folder / DATABASE, out / DATABASE)  # at once: readers keep the old file
                (out / "lock.mdb").unlink(missing_ok=True)
            else:
                os.rename(folder, out)
        except (lmdb.Error, OSError) as error:
            free = shutil.disk_usage(out.parent).free
            # A write that is cut short by a full disk is an input/output error to LMDB.
            full = (
                isinstance(error, lmdb.DiskError)
                or free < COMMIT_BYTES
                or getattr(error, "errno", None) == errno.ENOSPC
            )
            raise DataError(
                what=f"'{out}' can't be written" + (": the disk is full" if full else ""),
                where=str(out.parent),
                cause=f"{type(error).__name__}: {error}",
                got=f"{free / 1e6:,.0f} MB free",
                remedy="free some space, choose another place, or write fewer samples "
                "with --limit; nothing was left behind",
            ) from error
    return header


def check_place(out: Path, overwrite: bool) -> None:
    """Whether a database may be written here.

    Raises:
        DataError: something is there that is not to be replaced.
    """
    if not out.exists() and not out.is_symlink():
        return
    if not overwrite:
        raise DataError(
            what=f"'{out}' exists",
            where=str(out),
            remedy="choose another name, or replace it with --overwrite",
        )
    names = {p.name for p in out.iterdir()} if out.is_dir() else set()
    if DATABASE not in names or names - {DATABASE, "lock.mdb"}:
        raise DataError(
            what=f"'{out}' is no LMDB database and is not overwritten",
            where=str(out),
            expected=f"a folder that holds {DATABASE} and nothing else",
            got=", ".join(sorted(names)[:5]) or "something else",
            remedy="choose another name",
        )


@contextlib.contextmanager
def _partial(out: Path) -> Iterator[Path]:
    """An empty folder beside `out`, held by this process alone, and gone afterwards.

    What a killed process has left there is removed.
    """
    folder = out.parent / f".{out.name}.partial"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        held = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise DataError(
            what=f"'{out}' can't be written",
            where=str(folder),
            cause=f"{type(error).__name__}: {error.strerror}",
            remedy="choose another place",
        ) from error
    try:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Whoever held it may have renamed it a moment ago.
            mine = folder.exists() and os.stat(folder).st_ino == os.fstat(held).st_ino
        except OSError:
            mine = False
        if not mine:
            raise DataError(
                what=f"another process is writing '{out}'",
                where=str(folder),
                remedy="wait for it, or choose another name",
            )
        for one in folder.iterdir():
            one.unlink()
        try:
            yield folder
        finally:
            if folder.exists() and os.stat(folder).st_ino == os.fstat(held).st_ino:
                shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(held)


def _fill(
    lmdb: Any,
    samples: Iterable[Mapping[str, Array]],
    folder: Path,
    told: Callable[[int], None],
    map_bytes: int,
) -> Header:
    environment = lmdb.open(
        str(folder), map_size=map_bytes, lock=False, sync=False, readahead=False
    )
    try:
        header = _write_all(_Writer(lmdb, environment), samples, told)
        environment.sync(True)
        pages = environment.info()["last_pgno"] + 1
        size = pages * environment.stat()["psize"]
    finally:
        environment.close()
    if (folder / DATABASE).stat().st_size < size:
        os.truncate(folder / DATABASE, size)  # pages that were given back may never be written
    return header


class _Writer:
    """Puts records in order, many in one transaction, and grows the map when it is full."""

    def __init__(self, lmdb: Any, environment: Any) -> None:
        self.lmdb, self.environment = lmdb, environment
        self.waiting: list[tuple[bytes, bytes]] = []
        self.bytes = 0

    def put(self, key: bytes, record: bytes) -> None:
        self.waiting.append((key, record))
        self.bytes += len(record)
        if self.bytes >= COMMIT_BYTES or len(self.waiting) >= COMMIT_SAMPLES:
            self.commit()

    def commit(self) -> None:
        while True:
            try:
                with self.environment.begin(write=True) as transaction:
                    for key, record in self.waiting:
                        transaction.put(key, record, append=True)
                break
            except self.lmdb.MapFullError:
                self.environment.set_mapsize(2 * self.environment.info()["map_size"])
        self.waiting, self.bytes = [], 0


def _write_all(
    writer: _Writer, samples: Iterable[Mapping[str, Array]], told: Callable[[int], None]
) -> Header:
    digest = hashlib.sha256()
    dtypes: dict[str, str] = {}
    shapes: dict[str, tuple[int, ...] | None] = {}
    number = 0
    for number, sample in enumerate(samples, 1):
        found = {name: array.dtype.name for name, array in sample.items()}
        if number == 1:
            dtypes, shapes = found, {name: array.shape for name, array in sample.items()}
        _check_sample(found, dtypes, number - 1)
        for name, array in sample.items():
            if shapes[name] != array.shape:
                shapes[name] = None
        record = encode(sample, list(dtypes))
        digest.update(record)
        writer.put(key_of_sample(number - 1), record)
        told(number)
    if not number:
        raise DataError(what="there is no sample to write", expected="at least one")
    entries = tuple(Entry(name, dtype, shapes[name]) for name, dtype in dtypes.items())
    header = Header(number, entries, digest.hexdigest())
    writer.put(HEADER, header.encode())
    writer.commit()
    return header


def _check_sample(found: Mapping[str, str], first: Mapping[str, str], number: int) -> None:
    for name, dtype in found.items():
        if dtype not in DTYPES:
            raise DataError(
                what=f"entry '{name}' of sample {number} holds no numbers that torch has",
                expected=", ".join(DTYPES),
                got=dtype,
                remedy="convert or leave it out: choose entries with --names",
            )
    if found != first:
        raise DataError(
            what=f"sample {number} has other names or dtypes than sample 0",
            expected=", ".join(f"{name} {dtype}" for name, dtype in first.items()),
            got=", ".join(f"{name} {dtype}" for name, dtype in found.items()),
            remedy="make all samples alike; their shapes may differ",
        )
