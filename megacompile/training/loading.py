"""Numbered samples as an endless stream of batches, fetched by worker processes if there are any.

The batches are the same for any number of workers: the order and the seed of each batch are settled
before it is handed to one. Workers live as long as the stream and fetch ahead, over the ends of
epochs too.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import signal
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from megacompile.errors import DataError, MegacompileError, from_dict
from megacompile.models import to_torch
from megacompile.system import hooks

Batch = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Order:
    """What is in one batch. `seed` is for what is drawn at random while its samples are made."""

    seed: int
    indices: Sequence[int]


@dataclass(frozen=True)
class Failed:
    """An error as data: an exception that crosses processes loses the line it came from."""

    error: dict[str, Any]


def endless_batches(
    dataset: Any, size: int, seed: int, label: str, workers: int = 0, pin: bool = False
) -> Iterator[Batch]:
    """Batches of `size` samples, shuffled anew in each epoch; a batch may reach over its end.

    `pin` puts them into pinned memory, from which a copy to a GPU doesn't wait.

    Raises:
        DataError: a sample can't be fetched or doesn't fit the others; a worker died.
    """
    orders: Any = _orders(len(dataset), size, seed)
    loader: Any = torch.utils.data.DataLoader(
        _Fetch(dataset, label),
        batch_size=None,
        sampler=_Once(orders),
        num_workers=workers,
        collate_fn=_as_it_is,
        pin_memory=pin,
        generator=torch.Generator().manual_seed(seed),  # or it draws from the step's generator
    )
    iterator: Any = None
    try:
        with _dying_workers_raise():
            iterator = iter(loader)
        while True:
            with _dying_workers_raise():
                found = next(iterator)
            if isinstance(found, Failed):
                raise from_dict(found.error)
            yield found
    except (RuntimeError, OSError, EOFError) as error:
        # A batch of a worker that is gone can't be taken over: its end of the line is closed.
        lost = isinstance(error, (ConnectionError, FileNotFoundError, EOFError))
        if not lost and "DataLoader worker" not in str(error):
            raise
        traceback.clear_frames(error.__traceback__)  # or the error keeps the other workers alive
        raise DataError(
            what=f"a worker process of {label} died",
            where="train.workers",
            cause=str(error).strip().splitlines()[0] if str(error).strip() else None,
            remedy="look at its memory (/dev/shm included) and native code, or set workers: 0 to "
            "see the error",
        ) from error
    finally:
        del iterator, loader  # workers end now, not when an error that knows this frame is gone


def collate(samples: Sequence[Any], label: str) -> Batch:
    """Single samples stacked along a new first axis.

    Raises:
        DataError: a sample is no dict, or they differ in names, shapes or dtypes.
    """
    for sample in samples:
        if not isinstance(sample, Mapping):
            raise DataError(
                what=f"a sample of {label} is no dict",
                where="train.batches",
                expected="{name: array}",
                got=type(sample).__name__,
            )
        if set(sample) != set(samples[0]):
            raise DataError(
                what=f"samples of {label} differ in their names",
                where="train.batches",
                expected=", ".join(map(str, samples[0])),
                got=", ".join(map(str, sample)),
            )
    batch = {}
    for name in samples[0]:
        tensors = [tensor_of(sample[name], f"'{name}' of a sample") for sample in samples]
        kinds = list(dict.fromkeys((str(t.dtype), tuple(t.shape)) for t in tensors))
        if len(kinds) > 1:
            shown = [f"{dtype.removeprefix('torch.')} {list(shape)}" for dtype, shape in kinds[:2]]
            raise DataError(
                what=f"'{name}' is not alike in all samples of {label}",
                where="train.batches",
                expected=shown[0],
                got=shown[1],
                remedy="pad or cut the samples to one shape",
            )
        batch[str(name)] = torch.stack(tensors)
    return batch


def tensor_of(value: Any, what: str) -> torch.Tensor:
    """A tensor of an array-like.

    Raises:
        DataError: it holds something else than numbers.
    """
    if isinstance(value, torch.Tensor):
        return value.detach()
    array = np.asarray(value)
    if array.dtype.kind not in "biufc" and "float" not in array.dtype.name:
        raise DataError(
            what=f"{what} is no array of numbers",
            where="train.batches",
            expected="numbers of one dtype",
            got=f"dtype {array.dtype}",
            remedy="turn it into numbers in the hook, or leave it out",
        )
    return to_torch(array)


@contextlib.contextmanager
def drawn(seed: int) -> Iterator[None]:
    """Seed what data is drawn with, and give the step its own generators back afterwards."""
    before = torch.get_rng_state(), np.random.get_state(), random.getstate()
    seed %= 2**32
    torch.default_generator.manual_seed(seed)  # torch.manual_seed would seed the GPUs too
    np.random.seed(seed)
    random.seed(seed)
    try:
        yield
    finally:
        torch.set_rng_state(before[0])
        np.random.set_state(before[1])
        random.setstate(before[2])


def seed_of(seed: int, number: int) -> int:
    """The seed of one batch or epoch."""
    return seed * 1_000_003 + number


def _orders(samples: int, size: int, seed: int) -> Iterator[Order]:
    indices = _indices(samples, seed)
    for number in itertools.count():
        yield Order(seed_of(seed, number), list(itertools.islice(indices, size)))


def _indices(samples: int, seed: int) -> Iterator[int]:
    for epoch in itertools.count():
        generator = torch.Generator().manual_seed(seed_of(seed, epoch))
        yield from torch.randperm(samples, generator=generator).tolist()


class _Once(torch.utils.data.Sampler[Order]):
    """Orders as a sampler."""

    def __init__(self, orders: Iterator[Order]) -> None:
        self.orders = orders

    def __iter__(self) -> Iterator[Order]:
        return self.orders


class _Fetch(torch.utils.data.Dataset[Any]):
    """The dataset as a loader sees it: asked for an order, it gives a batch or a failure."""

    def __init__(self, dataset: Any, label: str) -> None:
        self.dataset, self.label = dataset, label

    def __getitem__(self, order: Order) -> Batch | Failed:
        with drawn(order.seed):
            try:
                return hooks.call(self.label, self._batch, order.indices, leaf=DataError)
            except MegacompileError as error:
                return Failed(error.to_dict())

    def _batch(self, indices: Sequence[int]) -> Batch:
        if hasattr(self.dataset, "__getitems__"):
            samples = self.dataset.__getitems__(indices)
        else:
            samples = [self.dataset[index] for index in indices]
        return collate(samples, self.label)


def _as_it_is(found: Any) -> Any:
    return found


_waiting = False


@contextlib.contextmanager
def _dying_workers_raise() -> Iterator[None]:
    """torch raises in the main thread wherever it is when a worker dies: let it do so only in
    here, so that the training step is not blamed. Elsewhere the next wait finds it within seconds.
    """
    global _waiting
    _waiting = True
    try:
        yield
    finally:
        _waiting = False
        _guard()


def _guard() -> None:
    handler = signal.getsignal(signal.SIGCHLD)
    of_torch = str(getattr(handler, "__module__", "")).startswith("torch.")
    if not of_torch or threading.current_thread() is not threading.main_thread():
        return

    def guarded(number: int, frame: Any) -> None:
        if _waiting:
            handler(number, frame)  # type: ignore[operator, misc]

    signal.signal(signal.SIGCHLD, guarded)
