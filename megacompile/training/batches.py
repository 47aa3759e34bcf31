"""The user's training data as batches of one size, the same in every process.

A hook gives either dicts of name to array whose first axis counts samples (any number of them:
they are cut and joined), or a torch Dataset of single samples, which is shuffled with the seed.
When the data ends it starts again.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from megacompile.errors import DataError
from megacompile.spec import Train
from megacompile.system import hooks
from megacompile.training.data.samples import check_rows, is_numbered, is_sample_stream, open_source
from megacompile.training.loading import (
    Batch,
    collate,
    drawn,
    endless_batches,
    seed_of,
    tensor_of,
)

END = object()


class Batches:
    """An endless iterable: every `iter()` starts anew and gives the same batches again.

    Of the last iterator: `started` is the time in seconds until its first batch was there,
    `waited` the time spent waiting for the others, `taken` the number of batches it gave. For a
    `device` that is a GPU batches lie in pinned memory.
    """

    def __init__(
        self, train: Train, base: Path, seed: int, size: int | None = None, device: str = "cpu"
    ) -> None:
        self.train, self.base, self.seed = train, base, seed
        self.size = size or train.batch_size
        self.label = f"train.batches '{train.batches}'"
        self.started = self.waited = 0.0
        self.taken = 0
        self.numbered = False
        self._pin = device != "cpu"
        self._kept: list[Any] | None = None

    def __iter__(self) -> Iterator[Batch]:
        self.started = self.waited = 0.0
        self.taken = 0
        stream = self._stream()
        while True:
            start = time.perf_counter()
            batch = hooks.call(self.label, next, stream, leaf=DataError)
            spent = time.perf_counter() - start
            if self.taken:
                self.waited += spent
            else:
                self.started = spent
            self.taken += 1
            yield batch

    def remedy(self) -> str:
        """What to do when a step waits for data."""
        if not self.numbered:
            return (
                "return a Dataset and load it with `workers`, or write it once with "
                "`megacompile write-lmdb`"
            )
        if self.train.preload:
            return f"load it with more than {self.train.workers} `workers`"
        if not self.train.workers:
            return "load it with `workers: 2` or more, or `preload: true` if it fits in memory"
        return (
            f"load it with more than {self.train.workers} `workers`, `preload: true` if it "
            "fits in memory, or write it once, decoded, with `megacompile write-lmdb`"
        )

    def _stream(self) -> Iterator[Batch]:
        train = self.train
        source = self._kept or open_source(train.batches, self.base, self.label, train.preload)
        self.numbered = self._kept is not None or is_numbered(source)
        if not self.numbered:
            self._check_options()
            joined = _joined(self._pieces(source), self.size, self.label)
            yield from map(_pinned, joined) if self._pin else joined
        if not len(source):
            raise self._empty()
        if train.preload and self._kept is None:
            with drawn(self.seed):
                self._kept = source = [source[index] for index in range(len(source))]
        yield from endless_batches(
            source, self.size, self.seed, self.label, train.workers, self._pin
        )

    def _check_options(self) -> None:
        """A stream can't be shared out: each worker would give all of its samples."""
        if self.train.workers == 0 and not self.train.preload:
            return
        option = "workers" if self.train.workers > 0 else "preload"
        raise DataError(
            what=f"`{option}` needs a Dataset",
            where=f"train.{option}",
            expected="a torch.utils.data.Dataset with a length and numbered samples, "
            "npz:, lmdb: or arrays:",
            got=f"{self.label} gives a stream",
            remedy="return a Dataset, write the stream to LMDB with "
            f"`megacompile write-lmdb {self.train.batches} OUT`, or leave `{option}` out",
        )

    def _pieces(self, source: Any) -> Iterator[Batch]:
        """Pieces of any number of samples, epoch after epoch."""
        for epoch in itertools.count():
            if epoch:
                source = open_source(self.train.batches, self.base, self.label)
            empty = True
            for piece in self._epoch(source, seed_of(self.seed, epoch)):
                empty = False
                yield piece
            if empty:
                once = "it can be read only once: give a function that returns a new one"
                raise self._empty(once if epoch else None)

    def _epoch(self, source: Any, seed: int) -> Iterator[Batch]:
        with drawn(seed):
            stream = iter([source] if isinstance(source, Mapping) else source)
        for number in itertools.count():
            with drawn(seed_of(seed, number)):
                if is_sample_stream(source):
                    samples = list(itertools.islice(stream, self.size))
                    piece = collate(samples, self.label) if samples else None
                else:
                    found = next(stream, END)
                    where = f"piece {number} of {self.label}"
                    piece = None if found is END else piece_of(found, where)
            if piece is None:
                return
            yield piece

    def _empty(self, remedy: str | None = None) -> DataError:
        return DataError(
            what=f"{self.label} is empty",
            where="train.batches",
            expected="at least one sample",
            remedy=remedy,
        )


def piece_of(piece: Any, label: str) -> Batch:
    """A piece as tensors with equal numbers of samples.

    Raises:
        DataError: no dict, an entry without samples, or entries that differ in their number.
    """
    if not isinstance(piece, Mapping) or not piece:
        raise DataError(
            what=f"{label} is no dict",
            where="train.batches",
            expected="{name: array}, the first axis counting samples",
            got=type(piece).__name__,
        )
    batch = {str(name): tensor_of(value, f"'{name}' in {label}") for name, value in piece.items()}
    check_rows(batch, label)
    return batch


def _pinned(batch: Batch) -> Batch:
    return {name: tensor.pin_memory() for name, tensor in batch.items()}


def _joined(pieces: Iterator[Batch], size: int, label: str) -> Iterator[Batch]:
    """Batches of exactly `size` samples out of pieces of any size."""
    waiting: list[Batch] = []
    kinds: dict[str, torch.dtype] = {}
    rows = 0
    for piece in pieces:
        kinds = kinds or {name: tensor.dtype for name, tensor in piece.items()}
        _check_alike(piece, kinds, waiting, label)
        waiting.append(piece)
        rows += rows_of(piece)
        while rows >= size:
            whole = waiting[0] if len(waiting) == 1 else _stuck_together(waiting)
            # A copy: a batch must not keep all the data in memory, nor write into it.
            yield {name: tensor[:size].clone() for name, tensor in whole.items()}
            rows -= size
            waiting = [{n: t[size:] for n, t in whole.items()}] if rows else []


def _stuck_together(pieces: list[Batch]) -> Batch:
    return {name: torch.cat([one[name] for one in pieces]) for name in pieces[0]}


def _check_alike(
    piece: Batch, kinds: Mapping[str, torch.dtype], waiting: list[Batch], label: str
) -> None:
    """A piece has the names and dtypes of the first one, and joins those that wait for more.

    Sizes beside the samples may differ from batch to batch, but not within one.
    """
    if set(piece) != set(kinds):
        raise DataError(
            what=f"{label} changes its names",
            where="train.batches",
            expected=", ".join(kinds),
            got=", ".join(piece),
        )
    for name, tensor in piece.items():
        if tensor.dtype != kinds[name]:
            raise DataError(
                what=f"{label} changes the dtype of '{name}'",
                where="train.batches",
                expected=f"{kinds[name]} as in the first piece",
                got=str(tensor.dtype),
            )
        if waiting and tensor.shape[1:] != waiting[0][name].shape[1:]:
            raise DataError(
                what=f"{label} changes the shape of '{name}' within a batch",
                where="train.batches",
                expected=f"samples of shape {list(waiting[0][name].shape[1:])}",
                got=str(list(tensor.shape[1:])),
                remedy="pad them, or give whole batches of batch_size samples",
            )


def rows_of(batch: Mapping[str, torch.Tensor]) -> int:
    """Samples in a batch."""
    return next(iter(batch.values())).shape[0]


def split(batch: Mapping[str, torch.Tensor], pieces: int) -> list[Batch]:
    """A batch cut into equal pieces along the samples.

    Raises:
        DataError: the samples don't divide by the number of pieces.
    """
    rows = rows_of(batch)
    if rows % pieces:
        raise DataError(
            what="a batch does not divide by the accumulation",
            where="train.accumulate",
            expected=f"a multiple of {pieces} samples",
            got=f"{rows} samples",
        )
    part = rows // pieces
    return [
        {name: tensor[at * part : (at + 1) * part] for name, tensor in batch.items()}
        for at in range(pieces)
    ]


def to_device(batch: Mapping[str, torch.Tensor], device: str) -> Batch:
    """The batch where the model is; from pinned memory the copy doesn't wait."""
    return {name: tensor.to(device, non_blocking=True) for name, tensor in batch.items()}


def sized(train: Train, base: Path, seed: int) -> Callable[[int], Batch]:
    """The first batch of any size, for the search of the largest one. It is the same batch
    without workers, whose start takes longer than it."""
    alone = train.model_copy(update={"workers": 0, "preload": False})
    return lambda size: next(iter(Batches(alone, base, seed, size)))
