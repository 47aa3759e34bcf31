"""How long blocks of a step take to be computed again, whole or without their matrix products."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils import _pytree as pytree

from megacompile.training.products import WatchedProducts
from megacompile.training.step import TrainingStep

ROUNDS = 5


@dataclass(frozen=True)
class Times:
    """Milliseconds by block: `whole` for all of its forward again, `selective` for all but the
    matrix products; the latter has the blocks that have any."""

    whole: dict[str, float]
    selective: dict[str, float]


def recompute_times(step: TrainingStep, names: Sequence[str], piece: Mapping[str, Any]) -> Times:
    """Medians over rounds in which every block is timed, with and without watching operators.

    Keeping products takes a look at every operator, in the forward and again in the
    recomputation: that is part of its price. Blocks of one class, with parameters and results of
    the same shapes, get their mean: what they differ in is noise, which must not choose.
    """
    clock = _Clock(step, names)
    plain: list[dict[str, float]] = []
    watched: list[dict[str, float]] = []
    products: list[dict[str, float]] = []
    with clock:
        for _ in range(ROUNDS):
            plain.append(clock.round(piece, nullcontext())[0])
            whole, inside = clock.round(piece, WatchedProducts(clock.add_product, step.device))
            watched.append(whole)
            products.append(inside)
    usual, seen, multiplied = (_medians(rounds, names) for rounds in (plain, watched, products))
    looking = {name: max(seen[name] - usual[name], 0.0) for name in names}
    with_products = [name for name in names if multiplied[name] > 0]
    rest = {n: max(seen[n] - multiplied[n], 0.0) + looking[n] for n in with_products}
    kinds = clock.kinds(names)
    return Times(_smoothed(usual, kinds), _smoothed(rest, kinds))


@dataclass
class _Clock:
    """Times of the blocks' forwards, and of the products inside each, in one forward."""

    step: TrainingStep
    names: Sequence[str]
    totals: dict[str, float] = field(default_factory=dict)
    inside: dict[str, float] = field(default_factory=dict)
    shapes: dict[str, Any] = field(default_factory=dict)
    stack: list[tuple[str, float]] = field(default_factory=list)
    handles: list[Any] = field(default_factory=list)

    def __enter__(self) -> _Clock:
        for name in self.names:
            one = self.step.module.get_submodule(name)
            self.handles += [
                one.register_forward_pre_hook(self._enter(name)),
                one.register_forward_hook(self._leave, always_call=True),
            ]
        return self

    def __exit__(self, *exc: object) -> None:
        for handle in self.handles:
            handle.remove()

    def round(
        self, piece: Mapping[str, Any], watching: AbstractContextManager[Any]
    ) -> tuple[dict[str, float], dict[str, float]]:
        """One forward: milliseconds of the blocks, and of the products inside them."""
        self.totals, self.inside = {}, {}
        with watching:
            self.step.compute_loss(piece)
        return self.totals, self.inside

    def add_product(self, results: Any, seconds: float) -> None:
        for name, _ in self.stack:
            self.inside[name] = self.inside.get(name, 0.0) + seconds * 1e3

    def kinds(self, names: Sequence[str]) -> dict[str, Any]:
        """What makes blocks alike: class, parameters, and shapes of what they give."""
        found: dict[str, Any] = {}
        for name in names:
            module = self.step.module.get_submodule(name)
            parameters = tuple((n, p.shape) for n, p in module.named_parameters())
            found[name] = (type(module), parameters, self.shapes.get(name))
        return found

    def _enter(self, name: str) -> Callable[..., None]:
        return lambda *_: self.stack.append((name, self._now()))

    def _leave(self, module: Any, args: Any, output: Any) -> None:
        name, start = self.stack.pop()
        self.totals[name] = self.totals.get(name, 0.0) + self._now() - start
        leaves = pytree.tree_leaves(output)
        self.shapes[name] = tuple(one.shape for one in leaves if isinstance(one, torch.Tensor))

    def _now(self) -> float:
        if self.step.device != "cpu":
            torch.cuda.synchronize()
        return time.perf_counter() * 1e3


def _medians(rounds: Sequence[Mapping[str, float]], names: Sequence[str]) -> dict[str, float]:
    return {name: statistics.median(one.get(name, 0.0) for one in rounds) for name in names}


def _smoothed(times: Mapping[str, float], kinds: Mapping[str, Any]) -> dict[str, float]:
    groups: dict[Any, list[float]] = {}
    for name, value in times.items():
        groups.setdefault(kinds[name], []).append(value)
    return {name: statistics.mean(groups[kinds[name]]) for name in times}
