"""Which sizes a model really takes: found by running it."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from megacompile.models import Form, Signature, examples
from megacompile.spec import Dim, TensorInput

Shape = tuple[str | int, ...]
Range = tuple[int, int, int]
"""Smallest, typical, and largest size."""

SEARCH_SECONDS = 60.0
TRIES = 400
MOST_VALUES = 2**24  # of one input: larger guesses would fill the memory, not inform

IMAGES = (224, 32, 48, 28, 64, 8, 16, 128, 256, 299, 512)
LENGTHS = (32, 16, 64, 128, 8, 1024, 4096, 16000)


@dataclass(frozen=True)
class Tensor:
    """An input as guessed: sizes by name or fixed, dtype, and the values it may take."""

    name: str
    shape: Shape
    dtype: str = "float32"
    range: tuple[float, float] | None = None

    def entry(self) -> dict[str, Any]:
        """The input as the spec writes it."""
        found: dict[str, Any] = {"shape": list(self.shape), "dtype": self.dtype}
        return found if self.range is None else {**found, "range": list(self.range)}


@dataclass(frozen=True)
class Found:
    """Inputs and dims that the model took; `verified` is False if none were found."""

    tensors: tuple[Tensor, ...]
    dims: Mapping[str, Range] = field(default_factory=dict)
    verified: bool = False


Load = Callable[[Signature], Form]


class Search:
    """Tries a model with guessed inputs, until one guess works or the time is over."""

    def __init__(self, load: Load, constants: Mapping[str, Any] = {}) -> None:
        self.load, self.constants = load, dict(constants)
        self.end = time.monotonic() + SEARCH_SECONDS
        self.last_error: str | None = None
        self.last_seconds = 0.0

    def run(self, guesses: Sequence[Sequence[Tensor]]) -> Found | None:
        """The first combination of one guess per input that the model takes."""
        for number, chosen in enumerate(itertools.product(*guesses)):
            if number >= TRIES or time.monotonic() > self.end:
                return None
            names = _dims_of(chosen)
            for start in _starts(names):
                if time.monotonic() > self.end:
                    return None
                if self._works(chosen, {n: (s, s, s) for n, s in start.items()}, ["typical"]):
                    return self._widen(chosen, start)
        return None

    def _widen(self, tensors: tuple[Tensor, ...], start: dict[str, int]) -> Found:
        """Let every size vary that can, each by itself and then all together."""
        dims: dict[str, Range] = {n: (s, s, s) for n, s in start.items()}
        slow = self.last_seconds > 0.5
        for name, size in start.items():
            for wider in _ranges(name, size, slow):
                if self._works(tensors, {**dims, name: wider}, ["min", "max", "odd"]):
                    dims[name] = wider
                    break
        if not self._works(tensors, dims, ["min", "typical", "max", "odd"]):
            fixed = {n: (s, s, s) for n, s in start.items()}
            dims = {**fixed, "batch": dims["batch"]} if "batch" in dims else fixed
            if not self._works(tensors, dims, ["min", "typical", "max", "odd"]):
                dims = fixed
        sizes = {name: r[0] for name, r in dims.items() if r[0] == r[2]}
        varying = {name: r for name, r in dims.items() if name not in sizes}
        found = [replace(t, shape=_with_sizes(t.shape, sizes)) for t in tensors]
        return Found(tuple(found), varying, True)

    def _works(
        self,
        tensors: Sequence[Tensor],
        dims: Mapping[str, Range],
        which: Sequence[Literal["min", "typical", "max", "odd"]],
    ) -> bool:
        inputs: dict[str, Any] = {t.name: TensorInput.model_validate(t.entry()) for t in tensors}
        inputs |= self.constants
        largest = {n: r[2] for n, r in dims.items()}
        if any(_values(t.shape, largest) > MOST_VALUES for t in tensors):
            return False
        ranges = {n: Dim(min=r[0], typical=r[1], max=r[2]) for n, r in dims.items()}
        signature = Signature(inputs, ranges)
        try:
            form = self.load(signature)
            for one in which:
                start = time.monotonic()
                _call(form, examples.make(signature, examples.sizes(signature, one)))
                self.last_seconds = time.monotonic() - start
        except Exception as error:  # noqa: BLE001 - a wrong guess fails in any way it likes
            self.last_error = str(error).strip().splitlines()[0] if str(error) else repr(error)
            return False
        return True


def _call(form: Form, feeds: Any) -> None:
    """Run without looking at the outputs, whose names are not known yet."""
    from megacompile.models import Eager, Scripted, to_torch

    if isinstance(form, Eager):
        form.call(feeds)
    elif isinstance(form, Scripted):
        import torch

        with torch.no_grad():
            form.module(*[to_torch(feeds[name]) for name in form.signature.tensors])
    else:
        form.run(feeds)


def _with_sizes(shape: Shape, sizes: Mapping[str, int]) -> Shape:
    """A shape with the sizes that are known in place of their names."""
    return tuple(sizes.get(size, size) if isinstance(size, str) else size for size in shape)


def _values(shape: Shape, sizes: Mapping[str, int]) -> int:
    """How many values a tensor of these sizes holds."""
    return math.prod(sizes[size] if isinstance(size, str) else size for size in shape)


def _dims_of(tensors: Sequence[Tensor]) -> list[str]:
    return list(dict.fromkeys(s for t in tensors for s in t.shape if isinstance(s, str)))


def _starts(names: Sequence[str]) -> Iterator[dict[str, int]]:
    """Sizes to begin with. Image sides are equal, and so are all lengths."""
    sides = IMAGES if {"height", "width"} & set(names) else IMAGES[:1]
    lengths = LENGTHS if set(names) - {"batch", "height", "width"} else LENGTHS[:1]
    for side, length in itertools.product(sides, lengths):
        known = {"batch": 2, "height": side, "width": side}
        yield {name: known.get(name, length) for name in names}


def _ranges(name: str, size: int, slow: bool) -> list[Range]:
    """Ranges to try for a size that may vary, the widest first."""
    if name == "batch":
        return [(1, 1, 2)] if slow else [(1, 4, 16), (2, 4, 16)]
    if name in ("height", "width"):
        return [(max(1, size // 2), size, size * 3 // 2)]
    smallest = [low for low in (1, 2, 4, 8) if low < size]
    largest = [high for high in (512, 256, 128, 64, size) if high >= size]
    return [(low, min(size * 2, high), high) for high in largest for low in smallest]
