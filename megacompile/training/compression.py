"""Tensors that are saved for the backward pass, stored as integers meanwhile.

Each run of `block_size` values in memory has a minimum and a step of its own (blockwise
quantization as in Dettmers et al., "8-bit Optimizers via Block-wise Quantization", 2022; on
activations as in Chen et al., "ActNN", 2021). Minimum and maximum come back as they were, so a
mask of two values, such as dropout's, survives.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from megacompile.training.recipe import Compression

# So much is converted at a time: temporaries stay in the processor's cache, and small.
CHUNK_ELEMENTS = 2**18


class Packed:
    """The values of a run of memory, in its order, as integers with a scale per block.

    The integers are uint8, for 4 bits two in one; `low` and `step` are float32, one a block.
    """

    def __init__(self, flat: torch.Tensor, bits: int, block_size: int) -> None:
        """Compress a flat float tensor. `exact` afterwards says that it couldn't be done."""
        self.dtype, self.elements, self.bits, self.size = flat.dtype, flat.numel(), bits, block_size
        self.parts: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []
        self.exact = False
        for chunk in flat.split(max(CHUNK_ELEMENTS // block_size, 1) * block_size):
            rows = _rows(chunk.float(), block_size)
            low, high = rows.aminmax(dim=1, keepdim=True)
            step = (high - low) / (2**bits - 1)
            if not bool(torch.isfinite(step).all()):
                self.parts, self.exact = [], True  # infinities and NaN have no integer
                return
            integers = rows.sub_(low).div_(step.clamp(min=1e-38)).round_().to(torch.uint8)
            if bits == 4:
                integers = integers[:, ::2] | (integers[:, 1::2] << 4)
            self.parts.append((integers, low, step))

    def values(self) -> torch.Tensor:
        """The flat tensor, near what it was."""
        first = self.parts[0][0]
        flat = torch.empty(self.elements, dtype=self.dtype, device=first.device)
        at = 0
        for integers, low, step in self.parts:
            if self.bits == 4:
                integers = torch.stack([integers & 15, integers >> 4], dim=2).flatten(1)
            rows = integers.float().mul_(step).add_(low).flatten()
            count = min(rows.numel(), self.elements - at)
            flat[at : at + count] = rows[:count]
            at += count
        return flat

    def nbytes(self) -> int:
        return sum(t.numel() * t.element_size() for part in self.parts for t in part)


def _rows(flat: torch.Tensor, size: int) -> torch.Tensor:
    """[blocks, size], the last block filled up with its last value; never a view of the input."""
    size += size % 2  # two integers of 4 bits make a byte
    missing = -flat.numel() % size
    if missing:
        flat = torch.cat([flat, flat[-1:].expand(missing)])
        return flat.view(-1, size)
    return flat.clone().view(-1, size)


@dataclass(frozen=True)
class View:
    """How a saved tensor looks at packed values."""

    packed: Packed
    shape: tuple[int, ...]
    stride: tuple[int, ...]


class Compressor:
    """Pack and unpack for one forward: a storage that several operators save is packed once."""

    def __init__(self, choice: Compression, module: nn.Module) -> None:
        self.choice = choice
        self.held = {t.untyped_storage()._cdata for t in (*module.parameters(), *module.buffers())}
        self.packed: weakref.WeakValueDictionary[Any, Packed] = weakref.WeakValueDictionary()
        # A weak reference keeps an address from being given to another storage.
        self.seen: dict[int, StorageWeakRef] = {}

    def pack(self, tensor: torch.Tensor) -> torch.Tensor | View:
        if self.objection(tensor) is not None:
            return tensor
        dense = is_dense(tensor)
        storage = tensor.untyped_storage()
        key = (
            storage._cdata,
            tensor.storage_offset(),
            tensor.numel(),
            tensor.dtype,
            tensor._version,
        )
        packed = self.packed.get(key) if dense else None
        if packed is None:
            with torch.no_grad():
                flat = _in_memory_order(tensor.detach()) if dense else tensor.detach().flatten()
                packed = Packed(flat, self.choice.bits, self.choice.block_size)
            if packed.exact:
                return tensor
            if dense:
                self.seen[storage._cdata] = StorageWeakRef(storage)
                self.packed[key] = packed
        stride = tensor.stride() if dense else _contiguous_stride(tensor)
        return View(packed, tuple(tensor.shape), tuple(stride))

    def unpack(self, kept: torch.Tensor | View) -> torch.Tensor:
        if isinstance(kept, torch.Tensor):
            return kept
        return kept.packed.values().as_strided(kept.shape, kept.stride)

    def objection(self, tensor: torch.Tensor) -> str | None:
        """Why a tensor stays as it is; None if it doesn't."""
        if not tensor.is_floating_point():
            return "no float"
        if tensor.layout is not torch.strided or type(tensor) not in (torch.Tensor, nn.Parameter):
            return "no plain tensor"
        storage = tensor.untyped_storage()
        if storage._cdata in self.held:
            return "a parameter or buffer"
        if tensor.element_size() < 2 or tensor.numel() < self.choice.minimum_elements:
            return "small"
        if tensor.numel() * tensor.element_size() > storage.nbytes():
            return "expanded: with all repetitions it would be larger"
        return None


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether a tensor's elements fill a run of memory, in whatever order of axes."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True


def _in_memory_order(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.as_strided((tensor.numel(),), (1,), tensor.storage_offset())


def _contiguous_stride(tensor: torch.Tensor) -> tuple[int, ...]:
    return tuple(torch.empty(tensor.shape, device="meta").stride())


@contextlib.contextmanager
def compressing(choice: Compression, module: nn.Module) -> Iterator[None]:
    """What is saved inside is compressed: floats of at least `minimum_elements`.

    Integers, masks, small tensors, parameters and buffers of `module` and all their views, and
    tensors with an infinity or NaN stay as they are. Inside a checkpointed module nothing is
    saved, so nothing is compressed; its inputs stay as they are.
    """
    compressor = Compressor(choice, module)
    with torch.autograd.graph.saved_tensors_hooks(compressor.pack, compressor.unpack):
        yield
