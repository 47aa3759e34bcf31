"""Which blocks to checkpoint so that a step fits into a memory budget, at the least time.

The step is a row of segments: stretches of the forward that belong to one block (or to none).
What one segment saves may be saved by others too, and may be what a block starts from; so the
unit is not the block but the saved storage. A block may be computed again whole, or all but its
matrix products, which are then kept: they take most of the time, and often not most of the memory.
Memory is limited at every moment of the backward pass: while a segment is gone through, what
earlier segments keep is still there, and a checkpointed block's own activations are back. All of
it is linear in the choices: an integer program, solved by HiGHS. On a chain of equal blocks it
finds what Chen et al., "Training Deep Nets with Sublinear Memory Cost" (2016) and Griewank and
Walther, "Revolve" (2000) find for one level of recomputation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from megacompile.models import Array

# Equal blocks make many equal sets: proving the last part in a thousand, far below what times are
# known to, would take most of the solver's time.
GAP, SECONDS = 1e-3, 60.0


@dataclass(frozen=True)
class Segment:
    """A stretch of the forward. `blocks` are the candidate blocks it lies in, outermost first.

    `peak` are the most bytes alive while the backward pass goes through it, beyond what earlier
    segments saved: its own saved tensors, gradients under way, and temporaries.
    """

    blocks: tuple[str, ...]
    peak: int


@dataclass(frozen=True)
class Saved:
    """Storages that are saved in the same segments and that start the same blocks.

    `inputs` are blocks that keep them when checkpointed, since they start from them. `held`
    False: nobody else does, and `segments` says after which segment they are there. `products`
    are blocks in which they are a matrix product's result: kept where products are kept.
    """

    size: int
    segments: tuple[int, ...]
    inputs: tuple[str, ...] = ()
    held: bool = True
    products: tuple[str, ...] = ()


@dataclass(frozen=True)
class Problem:
    """`milliseconds` are what it takes to run each candidate's forward once more, `selective`
    what it takes without the matrix products. A block may be in both, in one, or in the other."""

    milliseconds: dict[str, float]
    segments: Sequence[Segment]
    saved: Sequence[Saved]
    selective: dict[str, float] = field(default_factory=dict)

    @property
    def ways(self) -> list[Way]:
        """All that can be chosen."""
        whole = [Way(name) for name in self.milliseconds]
        return whole + [Way(name, keeps_products=True) for name in self.selective]

    def cost(self, way: Way) -> float:
        """Milliseconds. A block without products takes the whole time either way."""
        if way.keeps_products and way.block in self.selective:
            return self.selective[way.block]
        return self.milliseconds[way.block]


class Way(NamedTuple):
    """A block and how it is checkpointed: whole, or all but its matrix products."""

    block: str
    keeps_products: bool = False


@dataclass(frozen=True)
class Solution:
    """Which blocks are checkpointed and how, what it takes, and bytes at the worst moment."""

    ways: tuple[Way, ...]
    milliseconds: float
    peak: int

    @property
    def blocks(self) -> tuple[str, ...]:
        """The checkpointed blocks."""
        return tuple(way.block for way in self.ways)


def peak_of(problem: Problem, chosen: Sequence[Way]) -> int:
    """Bytes at the worst moment when blocks are checkpointed in the chosen ways."""
    return worst_moment(problem, chosen)[1]


def worst_moment(problem: Problem, chosen: Sequence[Way]) -> tuple[int, int]:
    """The segment whose backward needs most, and how many bytes that are."""
    picked = {way.block: way.keeps_products for way in chosen}
    worst = (0, 0)
    for index, segment in enumerate(problem.segments):
        before = [saved for saved in problem.saved if saved.segments[0] < index]
        alive = sum(saved.size for saved in before if _is_alive(problem, saved, index, picked))
        if alive + segment.peak > worst[1]:
            worst = (index, alive + segment.peak)
    return worst


def _is_alive(problem: Problem, saved: Saved, at: int, picked: Mapping[str, bool]) -> bool:
    """Whether a storage exists when the backward pass reaches a segment: it is kept, or it was
    computed again together with the rest of the block that the segment lies in."""
    if picked.keys() & set(saved.inputs):
        return True
    if any(picked.get(name, False) for name in saved.products):
        return True
    if not saved.held:
        return False
    if not all(picked.keys() & set(problem.segments[i].blocks) for i in saved.segments):
        return True
    again = picked.keys() & set(problem.segments[at].blocks)
    return any(again & set(problem.segments[i].blocks) for i in saved.segments)


def cheapest_within(problem: Problem, budget: int) -> Solution | None:
    """The cheapest set of blocks whose peak is within the budget; None if there is none."""
    picked = _Program(problem).cheapest(budget)
    return None if picked is None else _solution(problem, picked)


def lowest_peak(problem: Problem) -> Solution:
    """The set of blocks with the lowest peak; among equals the cheapest."""
    lowest = peak_of(problem, _Program(problem).lowest())
    found = cheapest_within(problem, lowest)
    assert found is not None
    return found


def _solution(problem: Problem, picked: Sequence[Way]) -> Solution:
    cost = sum(problem.cost(way) for way in picked)
    return Solution(tuple(picked), cost, peak_of(problem, picked))


class _Program:
    """Variables: one 0/1 per way (taken?), one per storage (kept?), and the peak."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.ways = problem.ways
        self.numbers: dict[str, list[int]] = {}
        for number, way in enumerate(self.ways):
            self.numbers.setdefault(way.block, []).append(number)
        self.count = len(self.ways) + len(problem.saved) + 1
        self.scale = float(max(sum(s.size for s in problem.saved), 1))
        self.rows: list[Array] = []
        self.highest: list[float] = []
        self._exclusive()
        self._kept()
        self._peaks()

    def cheapest(self, budget: int) -> list[Way] | None:
        """The ways of the least time whose peak is within the budget; None if there are none."""
        costs = np.zeros(self.count)
        costs[: len(self.ways)] = [max(self.problem.cost(way), 0.0) for way in self.ways]
        # Blocks that cost the same: the fewer are chosen.
        costs[: len(self.ways)] += 1e-6 * max(float(costs.max()), 1.0)
        return self._solved(costs, budget / self.scale)

    def lowest(self) -> list[Way]:
        """The ways of the lowest peak."""
        costs = np.zeros(self.count)
        costs[-1] = 1.0
        found = self._solved(costs, np.inf)
        assert found is not None  # nothing is forbidden without a budget
        return found

    def _row(self) -> Array:
        return np.zeros(self.count)

    def _limit(self, row: Array, highest: float) -> None:
        self.rows.append(row)
        self.highest.append(highest)

    def _of(self, blocks: Iterable[str]) -> list[int]:
        """The variables of these blocks' ways."""
        return [number for name in blocks for number in self.numbers[name]]

    def _exclusive(self) -> None:
        """A block inside a checkpointed block is computed again with it: one of them at most,
        and in one way."""
        for blocks in {segment.blocks for segment in self.problem.segments}:
            ways = self._of(blocks)
            if len(ways) > 1:
                row = self._row()
                row[ways] = 1
                self._limit(row, 1)

    def _kept(self) -> None:
        """A storage is kept where one of its segments isn't checkpointed, as an input, or as a
        product that is kept."""
        for index, saved in enumerate(self.problem.saved):
            place = len(self.ways) + index
            holders = saved.segments if saved.held else ()
            for blocks in {self.problem.segments[i].blocks for i in holders}:
                row = self._row()  # 1 - sum(x) <= y
                row[place] = -1
                row[self._of(blocks)] -= 1
                self._limit(row, -1)
            for number in self._keepers(saved):
                row = self._row()  # x <= y
                row[place], row[number] = -1, 1
                self._limit(row, 0)

    def _keepers(self, saved: Saved) -> set[int]:
        """Ways in which a block keeps a storage although it is checkpointed."""
        products = {n for n in self._of(saved.products) if self.ways[n].keeps_products}
        return {*self._of(saved.inputs), *products}

    def _peaks(self) -> None:
        for index, segment in enumerate(self.problem.segments):
            row = self._row()
            row[-1] = -1
            for number, saved in enumerate(self.problem.saved):
                if saved.segments[0] >= index:
                    continue
                row[len(self.ways) + number] = saved.size / self.scale
                around = set(self._of(self._around(saved, segment)))
                for way in around - self._keepers(saved):
                    row[way] += saved.size / self.scale  # computed again with the block
            self._limit(row, -segment.peak / self.scale)

    def _around(self, saved: Saved, segment: Segment) -> list[str]:
        """Blocks of a segment in which a storage is saved and nowhere else."""
        if not saved.held:
            return []
        stretches = [self.problem.segments[i].blocks for i in saved.segments]
        return [name for name in segment.blocks if all(name in blocks for blocks in stretches)]

    def _solved(self, costs: Array, highest_peak: float) -> list[Way] | None:
        from scipy.optimize import Bounds, LinearConstraint, milp

        whole = np.zeros(self.count)
        whole[: len(self.ways)] = 1
        upper = np.ones(self.count)
        upper[-1] = highest_peak
        found = milp(
            costs,
            integrality=whole,
            bounds=Bounds(np.zeros(self.count), upper),
            constraints=LinearConstraint(np.array(self.rows), -np.inf, self.highest),
            options={"mip_rel_gap": GAP, "time_limit": SECONDS},
        )
        if found.x is None:
            return None
        return [way for i, way in enumerate(self.ways) if found.x[i] > 0.5]
