"""The stored format, byte for byte as it is described, and headers that are none."""

from __future__ import annotations

import json
import struct
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from megacompile.errors import DataError
from megacompile.training.data.lmdb_format import (
    HEADER,
    Entry,
    Header,
    decode,
    encode,
    import_lmdb,
    key_of_sample,
    read_header,
)

PATH = Path("data")
SAMPLE = {"x": np.float32([[1, 2, 3]]), "y": np.asarray(7, np.int16)}
LAYOUT = [("x", np.dtype("float32")), ("y", np.dtype("int16"))]
KNOWN = Header(2, (Entry("x", "float32", (1, 3)), Entry("y", "int16", None)), "abc")


def test_a_record_is_what_the_description_says() -> None:
    body = struct.pack("<BQQ3f", 2, 1, 3, 1, 2, 3) + struct.pack("<Bh", 0, 7)
    record = encode(SAMPLE, ["x", "y"])
    assert record == struct.pack("<I", zlib.crc32(body)) + body
    found = decode(memoryview(record), LAYOUT)
    assert {name: array.tolist() for name, array in found.items()} == {"x": [[1, 2, 3]], "y": 7}
    assert found["x"].flags.writeable, "a copy, out of the database's memory"


@pytest.mark.parametrize("place", range(0, 35, 7))
def test_every_changed_bit_is_found(place: int) -> None:
    record = bytearray(encode(SAMPLE, ["x", "y"]))
    record[place] ^= 16
    with pytest.raises(ValueError, match="checksum"):
        decode(memoryview(bytes(record)), LAYOUT)


def test_what_is_left_over_is_found_without_the_checksum() -> None:
    record = encode(SAMPLE, ["x", "y"])
    with pytest.raises(ValueError, match=rf"{len(record)} of {len(record) + 1} bytes"):
        decode(memoryview(record + b"\0"), LAYOUT, check=False)


def test_keys_are_in_the_order_of_numbers_and_the_header_behind() -> None:
    keys = [key_of_sample(number) for number in (0, 1, 255, 256, 2**40)]
    assert sorted([HEADER, *reversed(keys)]) == [*keys, HEADER]


def test_the_header_comes_back() -> None:
    assert read_header(KNOWN.encode(), PATH) == KNOWN


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (None, ["of another program", "'megacompile'"]),
        ({"version": 2}, ["another version of the format", "expected: 1", "got: 2"]),
        ({"format": "mine"}, ["header of 'data' is damaged", "format mine"]),
        ({"samples": -1}, ["damaged", "-1 samples"]),
        ({"entries": []}, ["damaged"]),
        ({"entries": [{"name": "x", "dtype": "object", "shape": None}]}, ["damaged"]),
        ({"entries": [{"name": "x", "dtype": "int8"}]}, ["damaged", "KeyError: 'shape'"]),
    ],
)
def test_headers_that_are_none(change: dict[str, Any] | None, words: list[str]) -> None:
    data = None
    if change is not None:
        data = json.dumps({**json.loads(KNOWN.encode()), **change}).encode()
    with pytest.raises(DataError) as caught:
        read_header(data, PATH)
    for word in [*words, "megacompile write-lmdb"]:
        assert word in str(caught.value)


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lmdb", None)
    with pytest.raises(DataError, match=r"pip install 'megacompile\[data\]'"):
        import_lmdb()
