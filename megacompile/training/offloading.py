"""Tensors that are saved for the backward pass wait in the host's memory.

Copies run on a stream of their own, from and to pinned memory: the forward doesn't wait for
them, and the backward finds the next one under way when it asks for the one before.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from megacompile.training.recipe import Offload


class Moved:
    """A tensor in pinned host memory, and its way back."""

    def __init__(self, tensor: torch.Tensor, stream: Any, before: Moved | None) -> None:
        self.device, self.stream, self.before = tensor.device, stream, before
        self.back: torch.Tensor | None = None
        self.host = torch.empty_strided(
            tensor.shape, tensor.stride(), dtype=tensor.dtype, pin_memory=True
        )
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(stream):
            self.host.copy_(tensor.detach(), non_blocking=True)
        # The allocator must not hand the memory out again before the copy has read it.
        tensor.record_stream(stream)

    def fetch(self) -> None:
        """Start the way back, once."""
        if self.back is None:
            with torch.cuda.stream(self.stream):
                self.back = self.host.to(self.device, non_blocking=True)

    def take(self) -> torch.Tensor:
        """The tensor on its device; the one that was saved before it is fetched meanwhile."""
        self.fetch()
        current = torch.cuda.current_stream(self.device)
        current.wait_stream(self.stream)
        back = self.back
        assert back is not None
        back.record_stream(current)
        self.back = None
        if self.before is not None:
            self.before.fetch()
            self.before = None
        return back


class _Offloader:
    def __init__(self, choice: Offload, module: nn.Module) -> None:
        self.choice = choice
        self.held = {t.untyped_storage()._cdata for t in (*module.parameters(), *module.buffers())}
        self.stream: Any = None
        self.last: Moved | None = None
        self.depth = 0 if choice.modules else 1

    def pack(self, tensor: torch.Tensor) -> torch.Tensor | Moved:
        if not self.depth or not wanted(tensor, self.choice.minimum_elements, self.held):
            return tensor
        if self.stream is None:
            self.stream = torch.cuda.Stream(tensor.device)
        self.last = Moved(tensor, self.stream, self.last)
        return self.last

    def unpack(self, kept: torch.Tensor | Moved) -> torch.Tensor:
        return kept.take() if isinstance(kept, Moved) else kept

    def enter(self, *_: Any) -> None:
        self.depth += 1

    def leave(self, *_: Any) -> None:
        self.depth -= 1


def wanted(tensor: torch.Tensor, minimum: int, held: set[int]) -> bool:
    """Whether a tensor lies on a GPU, is large enough, and no parameter's or buffer's.

    An expanded or sliced tensor would grow, or leave its storage where it is.
    """
    storage = tensor.untyped_storage()
    whole = tensor.numel() * tensor.element_size() == storage.nbytes()
    return tensor.is_cuda and tensor.numel() >= minimum and whole and storage._cdata not in held


@contextlib.contextmanager
def offloading(choice: Offload, module: nn.Module) -> Iterator[None]:
    """What is saved inside (or inside `choice.modules`) on a GPU waits in host memory."""
    offloader = _Offloader(choice, module)
    handles: list[Any] = []
    enter: Callable[..., None] = offloader.enter
    for name in choice.modules:
        one = module.get_submodule(name)
        handles.append(one.register_forward_pre_hook(enter))
        handles.append(one.register_forward_hook(offloader.leave, always_call=True))
    try:
        with torch.autograd.graph.saved_tensors_hooks(offloader.pack, offloader.unpack):
            yield
    finally:
        for handle in handles:
            handle.remove()
