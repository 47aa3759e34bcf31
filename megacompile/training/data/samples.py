"""Training data as its author gives it: numbered samples, a stream of samples, or pieces."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from megacompile.errors import DataError, did_you_mean
from megacompile.models import Array, to_numpy
from megacompile.system import hooks

STORED = ("npz", "lmdb", "arrays")
"""Kinds of stored data that a reference can name instead of Python."""


def open_source(reference: str, base: Path, label: str, preload: bool = False) -> Any:
    """What a reference names: stored data, or what the hook is or gives.

    Raises:
        DataError: it can't be opened, or is no data. SpecError: no such hook.
    """
    kind, _, place = reference.partition(":")
    if kind in STORED:
        from megacompile.training.data.stores import open_dataset

        return open_dataset(kind, base / place, preload, label)
    hook = hooks.load(reference, base)
    # A Dataset or a DataLoader may be callable by accident; it is data all the same.
    is_data = is_numbered(hook) or (isinstance(hook, Iterable) and not isinstance(hook, type))
    found = hook if is_data or not callable(hook) else hooks.call(label, hook, leaf=DataError)
    if not isinstance(found, Iterable) and not hasattr(found, "__getitem__"):
        raise DataError(
            what=f"{label} gives no batches",
            expected="an iterable of dicts, or a Dataset",
            got=type(found).__name__,
        )
    return found


def is_numbered(source: Any) -> bool:
    """Something with numbered samples that is not just a list of pieces."""
    if isinstance(source, (type, list, tuple, Mapping)) or is_sample_stream(source):
        return False
    return hasattr(source, "__getitem__") and hasattr(source, "__len__")


def is_sample_stream(source: Any) -> bool:
    """A torch IterableDataset: it gives single samples, and may have a length all the same."""
    torch = sys.modules.get("torch")  # whoever made one has imported it
    return torch is not None and isinstance(source, torch.utils.data.IterableDataset)


def single_samples(
    source: Any, label: str, names: Sequence[str] = ()
) -> Iterator[dict[str, Array]]:
    """Every sample once, in order. `names` names the members of samples that are tuples, or
    chooses entries of those that are dicts.

    Raises:
        DataError: a sample is no dict and `names` doesn't fit it, or the source raises.
    """
    if is_numbered(source):
        for index in range(len(source)):
            where = f"sample {index} of {label}"
            sample = hooks.call(where, source.__getitem__, index, leaf=DataError)
            yield _arrays(sample, names, where)
        return
    pieces = [source] if isinstance(source, Mapping) else source
    stream, single = iter(pieces), is_sample_stream(source)
    end = object()
    number = 0
    while True:
        where = f"{'sample' if single else 'piece'} {number} of {label}"
        piece = hooks.call(where, next, stream, end, leaf=DataError)
        if piece is end:
            return
        arrays = _arrays(piece, names, where)
        if single:
            yield arrays
        else:
            rows = check_rows(arrays, where)
            yield from ({name: array[row] for name, array in arrays.items()} for row in range(rows))
        number += 1


def check_rows(piece: Mapping[str, Any], label: str) -> int:
    """The number of samples in a piece of arrays or tensors.

    Raises:
        DataError: an entry without samples, or entries that differ in their number.
    """
    for name, array in piece.items():
        if array.ndim == 0:
            raise DataError(
                what=f"'{name}' in {label} has no axis of samples",
                expected="a first axis that counts samples",
                got="a single number",
            )
    sizes = {name: int(array.shape[0]) for name, array in piece.items()}
    if len(set(sizes.values())) != 1 or 0 in sizes.values():
        shown = ", ".join(f"{name} {size}" for name, size in sizes.items())
        raise DataError(
            what=f"{label} has entries of different numbers of samples, or none", got=shown
        )
    return next(iter(sizes.values()))


def _arrays(sample: Any, names: Sequence[str], where: str) -> dict[str, Array]:
    """A sample (or a piece) as a dict of numpy arrays."""
    if isinstance(sample, Mapping):
        for name in names:
            if name not in sample:
                raise DataError(
                    what=f"{where} has no entry '{name}'",
                    remedy=did_you_mean(name, map(str, sample)),
                )
        named = {str(name): sample[name] for name in names or sample}
    else:
        members = list(sample) if isinstance(sample, (tuple, list)) else [sample]
        if len(names) != len(members):
            raise DataError(
                what=f"{where} is no dict",
                expected="{name: array}, or one name for each of its members",
                got=f"{type(sample).__name__} of {len(members)} members and {len(names)} names",
                remedy="name its members with --names",
            )
        named = dict(zip(names, members, strict=True))
    if not named:
        raise DataError(what=f"{where} has no entries", expected="{name: array}")
    try:
        return {name: np.asarray(to_numpy(value)) for name, value in named.items()}
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(
            what=f"{where} can't be made into arrays",
            where=", ".join(named),
            cause=f"{type(error).__name__}: {error}",
        ) from error
