"""Live tensor bytes during a piece of work, measured: every allocation and free in order.

On CPU they come from the profiler, which sees eager and compiled code alike; on CUDA from the
caching allocator's own history.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from megacompile.models.torchmodules import unique_storages

SHOWN_POINTS = 400


@dataclass(frozen=True)
class Live:
    """Bytes above what was there at the start.

    `peak` is the most at any moment, `left` what remains at the end. `timeline` has up to
    `SHOWN_POINTS` pairs of milliseconds since the start and the most bytes since the point before.
    """

    peak: int
    left: int
    timeline: list[tuple[float, int]] = field(default_factory=list)


def live_memory(work: Callable[[], object], device: str = "cpu") -> Live:
    """Run `work` once and watch its allocations.

    On CPU the profiler doesn't see it when `work` frees what was there before: such memory
    counts as there all the time.
    """
    if device != "cpu":
        return _cuda_memory(work)
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        work()
    results: Any = profiler.profiler
    events = [one for one in results.kineto_results.events() if one.name() == "[memory]"]
    on_cpu = [one for one in events if int(one.device_type().value) == 0]
    return accumulate(sorted((one.start_ns(), one.nbytes()) for one in on_cpu))


def accumulate(events: list[tuple[int, int]]) -> Live:
    """Live memory out of (nanoseconds, bytes allocated or freed) in order."""
    total, peak, curve = 0, 0, []
    start = events[0][0] if events else 0
    for moment, size in events:
        total += size
        peak = max(peak, total)
        curve.append(((moment - start) / 1e6, total))
    return Live(peak, total, thin_peaks(curve))


def thin_peaks(curve: list[tuple[float, int]]) -> list[tuple[float, int]]:
    """At most `SHOWN_POINTS` points; each keeps the highest value of those it stands for."""
    if len(curve) <= SHOWN_POINTS:
        return curve
    width = -(-len(curve) // SHOWN_POINTS)
    return [
        max(curve[at : at + width], key=lambda point: point[1])
        for at in range(0, len(curve), width)
    ]


def _cuda_memory(work: Callable[[], object]) -> Live:
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    start = torch.cuda.memory_allocated()
    memory: Any = torch.cuda.memory
    memory._record_memory_history(max_entries=1_000_000, stacks="python", context=None)
    try:
        work()
        torch.cuda.synchronize()
        trace = memory._snapshot()["device_traces"][torch.cuda.current_device()]
    finally:
        memory._record_memory_history(enabled=None)
    signs = {"alloc": 1, "free_completed": -1}
    counted = [event for event in trace if event["action"] in signs]
    events = [(int(e["time_us"]) * 1000, signs[e["action"]] * int(e["size"])) for e in counted]
    peak = torch.cuda.max_memory_allocated() - start  # the allocator's word, not our sum
    return Live(peak, torch.cuda.memory_allocated() - start, accumulate(events).timeline)


def bytes_of(tensors: Any) -> int:
    """Bytes of tensors (nested in lists, tuples, dicts), each storage once and whole: several
    tensors may be parts of one, as a sharded block's gradients are."""
    from torch.utils import _pytree as pytree

    found: dict[int, int] = {}
    for one in pytree.tree_leaves(tensors):
        if isinstance(one, torch.Tensor):
            storage = _local(one).untyped_storage()
            found[storage.data_ptr()] = storage.nbytes()
    return sum(found.values())


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """The part of a sharded tensor that lies in this process."""
    anything: Any = tensor
    found: torch.Tensor = anything.to_local() if hasattr(anything, "to_local") else tensor
    return found.detach()


class SavedBytes:
    """Bytes that a forward keeps for the backward pass, by module; parameters don't count.

    Each storage counts once, for the innermost of the watched modules whose forward saved it
    first. Storages that are the forward's own inputs (`inputs`) count nowhere.
    """

    def __init__(self, module: nn.Module, names: list[str], inputs: Any = ()) -> None:
        self.module, self.names = module, names
        self.by_module: dict[str, int] = {}
        self._stack: list[str] = []
        self._seen = set(unique_storages([*module.parameters(), *module.buffers()]))
        self._seen |= set(_addresses(inputs))
        self._alive: list[torch.Tensor] = []  # an address must not be used again while counting

    @contextmanager
    def watch(self) -> Iterator[SavedBytes]:
        """Count while a forward runs (and is not gone backward through yet)."""
        known = dict(self.module.named_modules())
        handles: list[Any] = []
        for name in self.names:
            one = known[name]
            handles.append(one.register_forward_pre_hook(self._enter(name)))
            handles.append(one.register_forward_hook(self._leave, always_call=True))
        try:
            with torch.autograd.graph.saved_tensors_hooks(self._pack, lambda kept: kept):
                yield self
        finally:
            for handle in handles:
                handle.remove()
            self._alive.clear()

    @property
    def total(self) -> int:
        """Bytes of all modules together."""
        return sum(self.by_module.values())

    def _enter(self, name: str) -> Callable[..., None]:
        def enter(module: nn.Module, args: Any) -> None:
            self._stack.append(name)

        return enter

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        if self._stack:
            self._stack.pop()

    def _pack(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        address = storage.data_ptr()
        if address not in self._seen:
            self._seen.add(address)
            self._alive.append(tensor.detach())
            owner = self._stack[-1] if self._stack else ""
            self.by_module[owner] = self.by_module.get(owner, 0) + storage.nbytes()
        return tensor


def _addresses(value: Any) -> Iterator[int]:
    from torch.utils import _pytree as pytree

    for one in pytree.tree_leaves(value):
        if isinstance(one, torch.Tensor):
            yield one.untyped_storage().data_ptr()
