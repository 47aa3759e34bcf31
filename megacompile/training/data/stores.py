"""Stored training data as map-style datasets: each item is a dict of name to one sample's array."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from megacompile.errors import DataError, did_you_mean
from megacompile.models import Array


class Samples(Protocol):
    """What a map-style dataset has."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> dict[str, Array]: ...


class Arrays:
    """Arrays of equal length, sample by sample; a memory-mapped one is read where it is asked."""

    def __init__(self, arrays: dict[str, Array]) -> None:
        self.arrays = arrays

    def __len__(self) -> int:
        return len(next(iter(self.arrays.values())))

    def __getitem__(self, index: int) -> dict[str, Array]:
        return {name: np.asarray(array[index]) for name, array in self.arrays.items()}


def open_dataset(kind: str, path: Path, preload: bool, where: str = "train.batches") -> Samples:
    """Open an .npz file (`npz`), a folder of .npy files, memory-mapped (`arrays`), or an LMDB
    database (`lmdb`).

    `preload` reads .npy files into memory at once.

    Raises:
        DataError: nothing is there, it can't be read, or the arrays differ in length.
    """
    if kind == "lmdb":
        from megacompile.training.data.lmdb_store import LmdbSamples

        return LmdbSamples(path)
    if not path.exists():
        near = did_you_mean(path.name, [p.name for p in path.parent.glob("*")])
        raise DataError(
            what=f"no such {'file' if kind == 'npz' else 'folder'} '{path}'",
            where=where,
            remedy=near,
        )
    try:
        arrays = _npz(path) if kind == "npz" else _folder(path, preload)
    except (OSError, ValueError) as error:
        raise DataError(
            what=f"'{path}' can't be read",
            where=where,
            cause=f"{type(error).__name__}: {error}",
            expected="numeric arrays as numpy.save and numpy.savez write them",
        ) from error
    lengths = {name: len(array) if array.ndim else 0 for name, array in arrays.items()}
    if not arrays or len(set(lengths.values())) != 1 or 0 in lengths.values():
        shown = ", ".join(f"{name} {length}" for name, length in lengths.items()) or "no array"
        raise DataError(
            what=f"'{path}' holds arrays of different lengths, or empty ones",
            where=where,
            expected="one entry per sample in each",
            got=shown,
        )
    return Arrays(arrays)


def stamp(kind: str, path: Path) -> list[Any]:
    """What tells stored data from other data without reading it: an LMDB database's hash of its
    content, otherwise the files' names, sizes and times. Empty if nothing is there."""
    if kind == "lmdb":
        from megacompile.training.data.lmdb_store import LmdbSamples

        try:
            return [LmdbSamples(path).header.content]
        except DataError:
            return []  # whoever opens it says what is wrong
    files: Sequence[Path] = sorted(path.glob("*.npy")) if path.is_dir() else [path]
    found = [(one.name, one.stat()) for one in files if one.exists()]
    return [[name, state.st_size, state.st_mtime_ns] for name, state in found]


def _npz(path: Path) -> dict[str, Array]:
    """A zip archive can't be mapped: it is always in memory."""
    from megacompile.models import load_arrays

    return load_arrays(path)


def _folder(path: Path, preload: bool) -> dict[str, Array]:
    mode: Literal["r"] | None = None if preload else "r"
    files = sorted(path.glob("*.npy"))
    return {one.stem: np.load(one, mmap_mode=mode, allow_pickle=False) for one in files}
