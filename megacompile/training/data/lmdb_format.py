"""The format of samples in an LMDB database: one record each, without pickle.

The database has one record per sample under its number (8 bytes, big-endian), and a header in JSON
under `HEADER`. A sample's record is the CRC-32 of the rest (4 bytes), then for each entry, in the
header's order: the number of axes (1 byte), their sizes (8 bytes each), and the values in C order.
All numbers are little-endian but for the keys, which LMDB sorts as bytes.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from megacompile.errors import DataError
from megacompile.models import Array

HEADER = b"megacompile"  # sorts behind all numbers
FORMAT, VERSION = "megacompile-samples", 1
DATABASE = "data.mdb"
DTYPES = (
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "complex64",
    "complex128",
)
WRITE = "megacompile write-lmdb SOURCE OUT"


def import_lmdb() -> Any:
    """The lmdb package.

    Raises:
        DataError: it is not installed.
    """
    try:
        import lmdb
    except ImportError as error:
        raise DataError(
            what="LMDB data needs the package lmdb",
            cause=str(error),
            remedy="pip install 'megacompile[data]', or keep the data as npz:FILE or arrays:FOLDER",
        ) from error
    return lmdb


@dataclass(frozen=True)
class Entry:
    """One array of every sample. `shape` is None if it differs between samples."""

    name: str
    dtype: str
    shape: tuple[int, ...] | None


@dataclass(frozen=True)
class Header:
    """What the database holds. `content` is a hash of all samples."""

    samples: int
    entries: tuple[Entry, ...]
    content: str

    def encode(self) -> bytes:
        """As JSON; `read_header` takes it back."""
        return json.dumps({"format": FORMAT, "version": VERSION, **asdict(self)}).encode()


def read_header(data: bytes | None, path: Path) -> Header:
    """The header of a database.

    Raises:
        DataError: there is none, it is of another version, or it is damaged.
    """
    remedy = f"write it with `{WRITE}`"
    if data is None:
        raise DataError(
            what=f"'{path}' is an LMDB database of another program",
            where=str(path),
            expected=f"a header under the key '{HEADER.decode()}'",
            remedy=remedy,
        )
    try:
        found = json.loads(data)
        if found["format"] == FORMAT and found["version"] != VERSION:
            raise DataError(
                what=f"'{path}' has another version of the format",
                where=str(path),
                expected=str(VERSION),
                got=str(found["version"]),
                remedy=remedy,
            )
        entries = tuple(map(_entry, found["entries"]))
        header = Header(int(found["samples"]), entries, str(found["content"]))
        if found["format"] != FORMAT or header.samples < 0 or not entries:
            raise ValueError(f"format {found['format']}, {header.samples} samples")
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            what=f"the header of '{path}' is damaged",
            where=str(path),
            cause=f"{type(error).__name__}: {error}",
            remedy=remedy,
        ) from error
    return header


def _entry(data: Mapping[str, Any]) -> Entry:
    shape = data["shape"]
    known = DTYPES[DTYPES.index(data["dtype"])]
    return Entry(str(data["name"]), known, None if shape is None else tuple(map(int, shape)))


def key_of_sample(number: int) -> bytes:
    """Where a sample's record is."""
    return number.to_bytes(8, "big")


def encode(sample: Mapping[str, Array], names: Sequence[str]) -> bytes:
    """A sample's record; dtypes are in the header and must be among DTYPES."""
    parts = []
    for name in names:
        array = sample[name]
        if not array.dtype.isnative:
            array = array.astype(array.dtype.newbyteorder("="))
        parts.append(struct.pack(f"<B{array.ndim}Q", array.ndim, *array.shape))
        parts.append(array.tobytes())
    body = b"".join(parts)
    return struct.pack("<I", zlib.crc32(body)) + body


def decode(
    record: memoryview, layout: Sequence[tuple[str, np.dtype[Any]]], check: bool = True
) -> dict[str, Array]:
    """The sample of a record, copied out of the database's memory.

    Raises:
        ValueError: it is damaged; only with `check` is every changed bit found.
    """
    if check and (len(record) < 4 or zlib.crc32(record[4:]) != struct.unpack_from("<I", record)[0]):
        raise ValueError("its checksum is another")
    sample: dict[str, Array] = {}
    at = 4
    for name, dtype in layout:
        axes = record[at]
        shape = struct.unpack_from(f"<{axes}Q", record, at + 1)
        at += 1 + 8 * axes
        values = np.frombuffer(record, dtype, prod(shape), at).reshape(shape)
        sample[name] = values.copy()
        at += values.nbytes
    if at != len(record):
        raise ValueError(f"{at} of {len(record)} bytes are used")
    return sample
