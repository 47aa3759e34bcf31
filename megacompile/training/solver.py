"""Which blocks to checkpoint so that a step fits into a memory budget, at the least time.

The step is a row of segments: stretches of the forward that belong to one block (or to none).
What one segment saves may be saved by others too, and may be what a block starts from; so the
unit is not the block but the saved storage. Memory is limited at every moment of the backward
pass: while a segment is gone through, what earlier segments keep is still there, and a
checkpointed block's own activations are back. All of it is linear in the choices: an integer
program, solved exactly by HiGHS. On a chain of equal blocks it finds what Chen et al.,
"Training Deep Nets with Sublinear Memory Cost" (2016) and Griewank and Walther, "Revolve"
(2000) find for one level of recomputation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from megacompile.tensors import Array


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
    False: nobody else does, and `segments` says after which segment they are there.
    """

    size: int
    segments: tuple[int, ...]
    inputs: tuple[str, ...] = ()
    held: bool = True


@dataclass(frozen=True)
class Problem:
    """`milliseconds` are what it takes to run each candidate's forward once more."""

    milliseconds: dict[str, float]
    segments: Sequence[Segment]
    saved: Sequence[Saved]


@dataclass(frozen=True)
class Solution:
    blocks: tuple[str, ...]
    milliseconds: float
    peak: int


def peak_of(problem: Problem, chosen: Sequence[str]) -> int:
    """Bytes at the worst moment when the chosen blocks are checkpointed."""
    return worst_moment(problem, chosen)[1]


def worst_moment(problem: Problem, chosen: Sequence[str]) -> tuple[int, int]:
    """The segment whose backward needs most, and how many bytes that are."""
    picked = set(chosen)
    worst = (0, 0)
    for index, segment in enumerate(problem.segments):
        alive = sum(s.size for s in problem.saved if s.segments[0] < index
                    and _is_alive(problem, s, index, picked))  # fmt: skip
        if alive + segment.peak > worst[1]:
            worst = (index, alive + segment.peak)
    return worst


def _is_alive(problem: Problem, saved: Saved, at: int, picked: set[str]) -> bool:
    """Whether a storage exists when the backward pass reaches a segment: it is kept, or it was
    computed again together with the rest of the block that the segment lies in."""
    if picked & set(saved.inputs):
        return True
    if not saved.held:
        return False
    if not all(picked & set(problem.segments[i].blocks) for i in saved.segments):
        return True
    again = picked & set(problem.segments[at].blocks)
    return any(again & set(problem.segments[i].blocks) for i in saved.segments)


def solve(problem: Problem, budget: int) -> Solution | None:
    """The cheapest set of blocks whose peak is within the budget; None if there is none."""
    picked = _Program(problem).cheapest(budget)
    return None if picked is None else _solution(problem, picked)


def least(problem: Problem) -> Solution:
    """The set of blocks with the lowest peak; among equals the cheapest."""
    lowest = peak_of(problem, _Program(problem).lowest())
    found = solve(problem, lowest)
    assert found is not None
    return found


def _solution(problem: Problem, picked: Sequence[str]) -> Solution:
    cost = sum(problem.milliseconds[name] for name in picked)
    return Solution(tuple(picked), cost, peak_of(problem, picked))


class _Program:
    """Variables: one 0/1 per block (checkpointed?), one per storage (kept?), and the peak."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.names = list(problem.milliseconds)
        self.number = {name: i for i, name in enumerate(self.names)}
        self.count = len(self.names) + len(problem.saved) + 1
        self.scale = float(max(sum(s.size for s in problem.saved), 1))
        self.rows: list[Array] = []
        self.highest: list[float] = []
        self._exclusive()
        self._kept()
        self._peaks()

    def cheapest(self, budget: int) -> list[str] | None:
        costs = np.zeros(self.count)
        costs[: len(self.names)] = [max(self.problem.milliseconds[n], 0.0) for n in self.names]
        # Blocks that cost the same: the fewer are chosen.
        costs[: len(self.names)] += 1e-6 * max(float(costs.max()), 1.0)
        return self._solved(costs, budget / self.scale)

    def lowest(self) -> list[str]:
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

    def _exclusive(self) -> None:
        """A block inside a checkpointed block is computed again with it: one of them at most."""
        for blocks in {segment.blocks for segment in self.problem.segments}:
            if len(blocks) > 1:
                row = self._row()
                row[[self.number[b] for b in blocks]] = 1
                self._limit(row, 1)

    def _kept(self) -> None:
        """A storage is kept where one of its segments isn't checkpointed, or as an input."""
        for index, saved in enumerate(self.problem.saved):
            place = len(self.names) + index
            holders = saved.segments if saved.held else ()
            for blocks in {self.problem.segments[i].blocks for i in holders}:
                row = self._row()  # 1 - sum(x) <= y
                row[place] = -1
                row[[self.number[b] for b in blocks]] -= 1
                self._limit(row, -1)
            for name in saved.inputs:
                row = self._row()  # x <= y
                row[place], row[self.number[name]] = -1, 1
                self._limit(row, 0)

    def _peaks(self) -> None:
        for index, segment in enumerate(self.problem.segments):
            row = self._row()
            row[-1] = -1
            for number, saved in enumerate(self.problem.saved):
                if saved.segments[0] >= index:
                    continue
                row[len(self.names) + number] = saved.size / self.scale
                for name in segment.blocks:
                    inside = saved.held and all(
                        name in self.problem.segments[i].blocks for i in saved.segments
                    )
                    if inside and name not in saved.inputs:  # computed again with the block
                        row[self.number[name]] += saved.size / self.scale
            self._limit(row, -segment.peak / self.scale)

    def _solved(self, costs: Array, highest_peak: float) -> list[str] | None:
        from scipy.optimize import Bounds, LinearConstraint, milp

        whole = np.zeros(self.count)
        whole[: len(self.names)] = 1
        upper = np.ones(self.count)
        upper[-1] = highest_peak
        found = milp(costs, integrality=whole, bounds=Bounds(np.zeros(self.count), upper),
                     constraints=LinearConstraint(np.array(self.rows), -np.inf, self.highest),
                     options={"mip_rel_gap": 1e-6})  # fmt: skip
        if found.x is None:
            return None
        return [name for i, name in enumerate(self.names) if found.x[i] > 0.5]
