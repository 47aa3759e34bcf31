"""Samples of an LMDB database, read where they lie; see `lmdb_format` for what is in there."""

from __future__ import annotations

import os
import struct
import weakref
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from megacompile.errors import DataError, did_you_mean
from megacompile.models import Array, numpy_dtype
from megacompile.training.data.lmdb_format import (
    DATABASE,
    HEADER,
    WRITE,
    Header,
    decode,
    import_lmdb,
    key_of_sample,
    read_header,
)


class Database:
    """An open environment of this process; it must not be used in another."""

    def __init__(self, path: Path) -> None:
        lmdb = import_lmdb()
        file = path / DATABASE
        try:
            self.process, self.inode = os.getpid(), file.stat().st_ino
            # Nobody writes to it: no lock is needed, so the folder may be read-only. Samples are
            # read in random order: reading ahead would fetch what nobody asked for.
            self.environment = lmdb.open(
                str(path),
                readonly=True,
                lock=False,
                create=False,
                readahead=False,
                max_spare_txns=4,
            )
            pages = self.environment.info()["last_pgno"] + 1
            whole = pages * self.environment.stat()["psize"]
        except (lmdb.Error, OSError) as error:
            raise DataError(
                what=f"'{path}' can't be read",
                where=str(path),
                expected=f"an LMDB database as `{WRITE}` writes it",
                cause=f"{type(error).__name__}: {error}",
                remedy="write it again",
            ) from error
        # Reading a mapped page behind the file's end would kill the process.
        if file.stat().st_size < whole:
            self.close()
            raise DataError(
                what=f"'{path}' is cut off",
                where=str(file),
                expected=f"at least {whole:,} bytes",
                got=f"{file.stat().st_size:,}",
                remedy="copy it again, or write it again",
            )
        self.open = True

    def close(self) -> None:
        """Close it; whoever still holds it must open another."""
        self.open = False
        self.environment.close()

    def usable(self, path: Path) -> bool:
        """Whether it is of this process and the file is still the one that was opened."""
        return (
            self.open
            and self.process == os.getpid()
            and (path / DATABASE).stat().st_ino == self.inode
        )


_OPEN: weakref.WeakValueDictionary[str, Database] = weakref.WeakValueDictionary()


def open_database(path: Path) -> Database:
    """The process's environment of a path: LMDB allows only one.

    Raises:
        DataError: nothing is there, or it is damaged.
    """
    if not (path / DATABASE).is_file():
        near = did_you_mean(path.name, [p.parent.name for p in path.parent.glob(f"*/{DATABASE}")])
        got = "no such folder" if not path.exists() else f"no {DATABASE} in it"
        raise DataError(
            what=f"no LMDB database '{path}'",
            where=str(path),
            expected="a folder",
            got=got,
            remedy=near or f"write one with `{WRITE}`",
        )
    key = str(path.resolve())
    found = _OPEN.get(key)
    if found is not None and not found.usable(path):
        found.close()  # inherited through a fork, or the file was replaced
        found = None
    if found is None:
        found = _OPEN[key] = Database(path)
    return found


class LmdbSamples:
    """A map-style dataset of {name: array}.

    Each process opens the database when it asks for its first sample, so that it can be handed to
    workers, forked or spawned. A sample's checksum is looked at once in each process.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._database: Database | None = open_database(path)
        self.header = self._read_header(self._database)
        self._layout = [(e.name, numpy_dtype(e.dtype)) for e in self.header.entries]
        self._checked = bytearray(self.header.samples)
        self._database = None  # a fork between here and the first sample finds nothing open
        if not self.header.samples:
            raise DataError(
                what=f"'{path}' holds no sample",
                where=str(path),
                remedy=f"write it again with `{WRITE}`",
            )

    def __len__(self) -> int:
        return self.header.samples

    def __getitem__(self, index: int) -> dict[str, Array]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Iterable[int]) -> list[dict[str, Array]]:
        """Several samples in one transaction: torch's DataLoader asks for a batch this way.

        Raises:
            DataError: one is missing or damaged, or the database was replaced meanwhile.
            IndexError: there is no such number.
        """
        lmdb = import_lmdb()
        environment = self._opened().environment
        try:
            with environment.begin(buffers=True) as transaction:
                return [self._sample(transaction, int(index)) for index in indices]
        except lmdb.Error as error:
            raise self._damaged("it can't be read", error) from error

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_database": None}

    def _sample(self, transaction: Any, index: int) -> dict[str, Array]:
        number = index + len(self) if index < 0 else index
        if not 0 <= number < len(self):
            raise IndexError(f"sample {index} of {len(self)}")
        record = transaction.get(key_of_sample(number))
        if record is None:
            raise self._damaged(f"sample {number} of {len(self)} is missing")
        try:
            sample = decode(record, self._layout, check=not self._checked[number])
        except (ValueError, struct.error, IndexError, OverflowError) as error:
            raise self._damaged(f"sample {number} is damaged", error) from error
        self._checked[number] = 1
        return sample

    def _damaged(self, what: str, error: Exception | None = None) -> DataError:
        return DataError(
            what=f"'{self.path}': {what}",
            where=str(self.path),
            cause=f"{type(error).__name__}: {error}" if error else None,
            remedy="copy it again, or write it again",
        )

    def _opened(self) -> Database:
        known = self._database
        if known is not None and known.open and known.process == os.getpid():
            return known
        database = open_database(self.path)
        if self._read_header(database) != self.header:
            raise DataError(
                what=f"'{self.path}' was replaced while it was read",
                where=str(self.path),
                remedy="start again",
            )
        self._database = database
        return database

    def _read_header(self, database: Database) -> Header:
        lmdb = import_lmdb()
        try:
            with database.environment.begin() as transaction:
                return read_header(transaction.get(HEADER), self.path)
        except lmdb.Error as error:
            raise self._damaged("it can't be read", error) from error
