"""The user's training data as batches of one size, the same in every process.

A hook gives either dicts of name to array whose first axis counts samples (any number of them:
they are cut and joined), or a torch Dataset of single samples, which is shuffled with the seed.
When the data ends it starts again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from megacompile import hooks
from megacompile.errors import DataError, MegacompileError
from megacompile.spec.training import Train
from megacompile.tensors import to_torch

Batch = dict[str, torch.Tensor]
STORED = ("npz", "lmdb", "arrays")


class Batches:
    """An endless iterable: every `iter()` starts anew and gives the same batches again.

    `waited` is the time in seconds that the last iterator spent waiting for data, `taken` the
    number of batches it gave.
    """

    def __init__(self, train: Train, base: Path, seed: int, size: int | None = None) -> None:
        self.train, self.base, self.seed = train, base, seed
        self.size = size or train.batch_size
        self.label = f"train.batches '{train.batches}'"
        self.waited, self.taken = 0.0, 0
        self._kept: list[Any] | None = None

    def __iter__(self) -> Iterator[Batch]:
        self.waited, self.taken = 0.0, 0
        source = self._pieces()
        joined = _joined(source, self.size, self.label)
        while True:
            start = time.perf_counter()
            batch = hooks.call(self.label, next, joined, leaf=DataError)
            self.waited += time.perf_counter() - start
            self.taken += 1
            yield batch

    def _pieces(self) -> Iterator[Batch]:
        """Pieces of any number of samples, epoch after epoch."""
        epoch = 0
        while True:
            empty = True
            for piece in self._epoch(epoch):
                empty = False
                yield piece
            if empty:
                raise DataError(what=f"{self.label} is empty", where="train.batches",
                                expected="at least one sample")  # fmt: skip
            epoch += 1

    def _epoch(self, epoch: int) -> Iterator[Batch]:
        source = self._kept if self._kept is not None else self._open()
        if self._kept is None and not is_dataset(source):
            yield from self._stream(source)
            return
        if self.train.preload and self._kept is None:
            self._kept = source = [source[index] for index in range(len(source))]
        yield from self._dataset(source, epoch)

    def _stream(self, source: Any) -> Iterator[Batch]:
        if self.train.workers > 0 or self.train.preload:
            option = "workers" if self.train.workers > 0 else "preload"
            raise DataError(what=f"`{option}` needs a Dataset", where=f"train.{option}",
                            expected="a torch.utils.data.Dataset, npz:, lmdb: or arrays:",
                            got=f"{self.label} gives a stream",
                            remedy=f"return a Dataset, or leave `{option}` out")  # fmt: skip
        for number, piece in enumerate([source] if isinstance(source, Mapping) else source):
            yield piece_of(piece, f"piece {number} of {self.label}")

    def _open(self) -> Any:
        kind, _, place = self.train.batches.partition(":")
        if kind in STORED:
            from megacompile.data import open_dataset

            return open_dataset(kind, self.base / place, preload=self.train.preload)
        hook = hooks.load(self.train.batches, self.base)
        found = hooks.call(self.label, hook, leaf=DataError) if callable(hook) else hook
        if not isinstance(found, Iterable) and not hasattr(found, "__getitem__"):
            raise DataError(what=f"{self.label} gives no batches", where="train.batches",
                            expected="an iterable of dicts, or a Dataset",
                            got=type(found).__name__)  # fmt: skip
        return found

    def _dataset(self, dataset: Any, epoch: int) -> Iterator[Batch]:
        order = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
        loader: Any = torch.utils.data.DataLoader(
            dataset, batch_size=min(self.size, max(len(dataset), 1)), shuffle=len(dataset) > 0,
            num_workers=self.train.workers, generator=order, collate_fn=collate,
            pin_memory=torch.cuda.is_available(),
        )  # fmt: skip
        try:
            yield from loader
        except MegacompileError:
            raise
        except RuntimeError as error:
            if "worker" not in str(error):
                raise
            raise DataError(
                what=f"a worker process of {self.label} died",
                where="train.workers",
                cause=str(error).splitlines()[0],
                remedy="look at its memory and native code, or set workers: 0 to see the error",
            ) from error


def is_dataset(source: Any) -> bool:
    """Something with numbered samples that is not just a list of pieces."""
    numbered = hasattr(source, "__getitem__") and hasattr(source, "__len__")
    return numbered and not isinstance(source, (list, tuple, Mapping))


def collate(samples: list[Any]) -> Batch:
    """Single samples stacked along a new first axis."""
    for sample in samples:
        if not isinstance(sample, Mapping):
            raise DataError(what="a sample of train.batches is no dict", where="train.batches",
                            expected="{name: array}", got=type(sample).__name__)  # fmt: skip
    return {str(name): _stacked(str(name), [s[name] for s in samples]) for name in samples[0]}


def _stacked(name: str, values: list[Any]) -> torch.Tensor:
    tensors = [_tensor(value, f"'{name}' of a sample") for value in values]
    shapes = sorted({tuple(tensor.shape) for tensor in tensors})
    if len(shapes) > 1:
        raise DataError(what=f"samples differ in the shape of '{name}'", where="train.batches",
                        expected="one shape within a batch",
                        got=" and ".join(str(list(shape)) for shape in shapes[:2]),
                        remedy="pad them in the Dataset")  # fmt: skip
    return torch.stack(tensors)


def _tensor(value: Any, what: str) -> torch.Tensor:
    if isinstance(value, torch.Tensor):
        return value.detach()
    array = np.asarray(value)
    if array.dtype.kind not in "biufc":
        raise DataError(what=f"{what} is no array of numbers", where="train.batches",
                        expected="numbers of one dtype", got=f"dtype {array.dtype}",
                        remedy="turn it into numbers in the hook, or leave it out")  # fmt: skip
    return to_torch(array)


def piece_of(piece: Any, label: str) -> Batch:
    """A piece as tensors with equal numbers of samples.

    Raises:
        DataError: no dict, an entry without samples, or entries that differ in their number.
    """
    if not isinstance(piece, Mapping) or not piece:
        raise DataError(what=f"{label} is no dict", where="train.batches",
                        expected="{name: array}, the first axis counting samples",
                        got=type(piece).__name__)  # fmt: skip
    batch = {str(name): _tensor(value, f"'{name}' in {label}") for name, value in piece.items()}
    for name, tensor in batch.items():
        if tensor.ndim == 0:
            raise DataError(what=f"'{name}' in {label} has no axis of samples",
                            where="train.batches", expected="a first axis that counts samples",
                            got="a single number")  # fmt: skip
    sizes = {name: tensor.shape[0] for name, tensor in batch.items()}
    if len(set(sizes.values())) != 1 or 0 in sizes.values():
        shown = ", ".join(f"{name} {size}" for name, size in sizes.items())
        raise DataError(what=f"{label} has entries of different numbers of samples, or none",
                        where="train.batches", got=shown)  # fmt: skip
    return batch


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
            whole = waiting[0] if len(waiting) == 1 else {
                name: torch.cat([one[name] for one in waiting]) for name in waiting[0]
            }  # fmt: skip
            # A copy: a batch must not keep all the data in memory, nor write into it.
            yield {name: tensor[:size].clone() for name, tensor in whole.items()}
            rows -= size
            waiting = [{n: t[size:] for n, t in whole.items()}] if rows else []


def _check_alike(
    piece: Batch, kinds: Mapping[str, torch.dtype], waiting: list[Batch], label: str
) -> None:
    """A piece has the names and dtypes of the first one, and joins those that wait for more.

    Sizes beside the samples may differ from batch to batch, but not within one.
    """
    if set(piece) != set(kinds):
        raise DataError(what=f"{label} changes its names", where="train.batches",
                        expected=", ".join(kinds), got=", ".join(piece))  # fmt: skip
    for name, tensor in piece.items():
        if tensor.dtype != kinds[name]:
            raise DataError(what=f"{label} changes the dtype of '{name}'", where="train.batches",
                            expected=f"{kinds[name]} as in the first piece",
                            got=str(tensor.dtype))  # fmt: skip
        if waiting and tensor.shape[1:] != waiting[0][name].shape[1:]:
            raise DataError(what=f"{label} changes the shape of '{name}' within a batch",
                            where="train.batches",
                            expected=f"samples of shape {list(waiting[0][name].shape[1:])}",
                            got=str(list(tensor.shape[1:])),
                            remedy="pad them, or give whole batches of batch_size samples",
                            )  # fmt: skip


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
        raise DataError(what="a batch does not divide by the accumulation",
                        where="train.accumulate", expected=f"a multiple of {pieces} samples",
                        got=f"{rows} samples")  # fmt: skip
    part = rows // pieces
    return [{name: tensor[at * part : (at + 1) * part] for name, tensor in batch.items()}
            for at in range(pieces)]  # fmt: skip


def to_device(batch: Mapping[str, torch.Tensor], device: str) -> Batch:
    """The batch where the model is; from pinned memory the copy doesn't wait."""
    return {name: tensor.to(device, non_blocking=True) for name, tensor in batch.items()}


def sized(train: Train, base: Path, seed: int) -> Callable[[int], Batch]:
    """The first batch of any size, for the search of the largest one."""
    return lambda size: next(iter(Batches(train, base, seed, size)))
