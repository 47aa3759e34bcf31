"""What each block of a step keeps for the backward pass, and what running it again takes.

Measured on one real piece of a batch: storages as autograd saves them, live memory from the
profiler, the results of matrix products, and times of the blocks' forwards.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree as pytree

from megacompile.training.products import WatchedProducts
from megacompile.training.recipe import BlockCost
from megacompile.training.solver import Problem, Saved, Segment, Way
from megacompile.training.step import TrainingStep
from megacompile.training.times import recompute_times

MARK = "megacompile segment "


@dataclass
class _Storage:
    size: int
    weak: StorageWeakRef  # as long as it lives, its address is no other storage's
    segments: list[int] = field(default_factory=list)
    inputs: list[str] = field(default_factory=list)
    products: tuple[str, ...] = ()
    """The blocks around the matrix product that it is a result of."""
    before: int = -1
    """The last segment there was when a block first took it as an input, or a product gave it."""


class _Watch:
    """Notes, during one forward and backward, who saves which storage in which segment."""

    def __init__(self, step: TrainingStep, names: Sequence[str], piece: Mapping[str, Any]) -> None:
        self.step, self.names = step, names
        outside = [*step.module.parameters(), *step.module.buffers(), *pytree.tree_leaves(piece)]
        self.outside = {t.untyped_storage()._cdata for t in outside if isinstance(t, torch.Tensor)}
        self.segments: list[tuple[str, ...]] = []
        self.storages: dict[int, _Storage] = {}
        self.stack: list[str] = []
        self.moved = True
        self.recording = True

    def run(self, piece: Mapping[str, Any]) -> None:
        handles: list[Any] = []
        for name in self.names:
            one = self.step.module.get_submodule(name)
            handles.append(one.register_forward_pre_hook(self._enter(name), with_kwargs=True))
            handles.append(one.register_forward_hook(self._leave, always_call=True))
        try:
            with (
                torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack),
                WatchedProducts(self._product),
            ):
                loss = self.step.compute_loss(piece)
            self.recording = False  # a checkpoint of the user's own calls modules once more
            self.step.backward(loss)
        finally:
            for handle in handles:
                handle.remove()

    def _enter(self, name: str) -> Callable[..., None]:
        def enter(module: Any, args: Any, kwargs: Any) -> None:
            if not self.recording:
                return
            self.stack.append(name)
            self.moved = True
            for tensor in pytree.tree_leaves((args, kwargs)):
                if isinstance(tensor, torch.Tensor) and (one := self._storage(tensor)):
                    if not one.inputs:
                        one.before = len(self.segments) - 1
                    if name not in one.inputs:
                        one.inputs.append(name)

        return enter

    def _leave(self, *_: Any) -> None:
        if self.recording:
            self.stack.pop()
            self.moved = True

    def _product(self, results: Any, seconds: float) -> None:
        if not self.recording or not self.stack:
            return
        for tensor in pytree.tree_leaves(results):
            if isinstance(tensor, torch.Tensor) and (one := self._storage(tensor)):
                one.products = tuple(self.stack)
                one.before = len(self.segments) - 1

    def _storage(self, tensor: torch.Tensor) -> _Storage | None:
        if tensor.layout is not torch.strided:
            return None
        storage = tensor.untyped_storage()
        if storage._cdata in self.outside:
            return None
        found = self.storages.get(storage._cdata)
        if found is None:
            found = _Storage(storage.nbytes(), StorageWeakRef(storage))
            self.storages[storage._cdata] = found
        return found

    def _pack(self, tensor: torch.Tensor) -> tuple[torch.Tensor, int]:
        if self.moved:
            self.moved = False
            if not self.segments or self.segments[-1] != tuple(self.stack):
                self.segments.append(tuple(self.stack))
                _mark(len(self.segments) - 1)
        now = len(self.segments) - 1
        if (one := self._storage(tensor)) is not None and now not in one.segments:
            one.segments.append(now)
        return tensor, now

    def _unpack(self, kept: tuple[torch.Tensor, int]) -> torch.Tensor:
        _mark(kept[1])
        return kept[0]


def _mark(segment: int) -> None:
    with torch.profiler.record_function(f"{MARK}{segment}"):
        pass


def measure(step: TrainingStep, names: Sequence[str], batch: Mapping[str, torch.Tensor]) -> Problem:
    """The problem that `solver` solves, for candidate blocks `names`, of a step on CPU or CUDA.

    The step keeps its parameters; its gradients are cleared.
    """
    piece = step.first_piece(batch)
    step.backward(step.compute_loss(piece))  # gradients have their place, caches are warm
    times = recompute_times(step, names, piece)
    watch = _Watch(step, names, piece)
    events = _events(lambda: watch.run(piece), step.device)
    step.optimizer.zero_grad(set_to_none=True)
    before = _saved_before(watch)
    peaks = _peaks(events, before)
    segments = [Segment(blocks, peaks[i]) for i, blocks in enumerate(watch.segments)]
    return Problem(times.whole, segments, _grouped(watch), times.selective)


def _saved_before(watch: _Watch) -> list[int]:
    """Bytes that earlier segments saved, for every segment."""
    return [
        sum(s.size for s in watch.storages.values() if s.segments and s.segments[0] < i)
        for i in range(len(watch.segments))
    ]


def _grouped(watch: _Watch) -> list[Saved]:
    sizes: dict[Saved, int] = {}
    for one in watch.storages.values():
        held = bool(one.segments)
        if held or one.inputs or one.products:
            segments = tuple(one.segments) if held else (one.before,)
            key = Saved(0, segments, tuple(one.inputs), held, one.products)
            sizes[key] = sizes.get(key, 0) + one.size
    return [dataclasses.replace(key, size=size) for key, size in sizes.items()]


def _events(work: Callable[[], None], device: str) -> list[tuple[int, int, int]]:
    """(nanoseconds, bytes, -1) of allocations and frees and (nanoseconds, 0, segment) of marks."""
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (device != "cpu")
    with profile(activities=activities, profile_memory=True) as profiler:
        work()
    kind = 0 if device == "cpu" else 1
    found = []
    results: Any = profiler.profiler
    for event in results.kineto_results.events():
        if event.name() == "[memory]" and int(event.device_type().value) == kind:
            found.append((event.start_ns(), event.nbytes(), -1))
        elif event.name().startswith(MARK) and int(event.device_type().value) == 0:
            found.append((event.start_ns(), 0, int(event.name().removeprefix(MARK))))
    return sorted(found)


def _peaks(events: Sequence[tuple[int, int, int]], before: Sequence[int]) -> list[int]:
    """For every segment, the most bytes alive in it beyond what earlier ones saved."""
    peaks = [0] * len(before)
    live, current = 0, 0
    for _, size, segment in events:
        live += size
        if segment >= 0:
            current = segment
        peaks[current] = max(peaks[current], live - before[current])
    return peaks


def block_costs(problem: Problem, chosen: Sequence[Way], why: str) -> tuple[BlockCost, ...]:
    """A record per candidate for the report."""
    ways = {way.block: way for way in chosen}
    found = []
    for name in dict.fromkeys((*problem.milliseconds, *problem.selective)):
        way = ways.get(name) or Way(name, keeps_products=name not in problem.milliseconds)
        inside = [s.size for s in problem.saved if _is_inside(problem, s, name)]
        cost = BlockCost(
            block=name,
            saved_bytes=sum(inside),
            recompute_ms=round(problem.cost(way), 3),
            chosen=name in ways,
            kept_bytes=sum(s.size for s in problem.saved if _is_kept(s, way)),
            why=why if name in ways else _why_not(name, ways),
        )
        found.append(cost)
    return tuple(found)


def _is_inside(problem: Problem, saved: Saved, block: str) -> bool:
    return saved.held and any(block in problem.segments[i].blocks for i in saved.segments)


def _is_kept(saved: Saved, way: Way) -> bool:
    """Whether a block that is checkpointed in this way still keeps a storage."""
    return way.block in saved.inputs or (way.keeps_products and way.block in saved.products)


def _why_not(name: str, chosen: Iterable[str]) -> str:
    outer = next((one for one in chosen if name.startswith(f"{one}.")), None)
    inner = next((one for one in chosen if one.startswith(f"{name}.")), None)
    if outer is not None:
        return f"part of {outer}"
    return f"{inner} inside it is enough" if inner is not None else "it fits without"
