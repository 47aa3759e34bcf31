"""The solver against brute force, against the classic chain results, and its least."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megacompile.training.solver import (
    Problem,
    Saved,
    Segment,
    Way,
    cheapest_within,
    lowest_peak,
    peak_of,
)


def chain(count: int, inner: int, boundary: int, head: int = 0) -> Problem:
    """Blocks in a row: each saves `inner` of its own and its input, which is the last one's
    output."""
    names = [f"b{i}" for i in range(count)]
    segments = [Segment((n,), inner + boundary) for n in names] + [Segment((), head)]
    saved = [Saved(inner, (i,)) for i in range(count)]
    saved += [Saved(boundary, (i,), (names[i],)) for i in range(count)]
    return Problem(dict.fromkeys(names, 1.0), segments, saved)


def brute(problem: Problem, budget: int) -> float | None:
    """The least time of all sets within the budget."""
    within = [chosen for chosen in allowed(problem) if peak_of(problem, chosen) <= budget]
    return min((sum(map(problem.cost, chosen)) for chosen in within), default=None)


def allowed(problem: Problem) -> Iterator[list[Way]]:
    """All sets in which no block is taken twice or with one inside it."""
    inside = [set(segment.blocks) for segment in problem.segments]
    options: list[list[Way | None]] = []
    for name in problem.milliseconds:
        options.append([None, *(way for way in problem.ways if way.block == name)])
    for one in itertools.product(*options):
        chosen = [way for way in one if way is not None]
        names = {way.block for way in chosen}
        if not any(len(blocks & names) > 1 for blocks in inside):
            yield chosen


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """Up to three outer blocks with up to two inner ones each, between parts of no block."""
    size = st.integers(0, 50)
    segments: list[Segment] = [Segment((), draw(size))]
    saved: list[Saved] = [Saved(draw(size), (0,))]
    milliseconds: dict[str, float] = {}
    for outer in range(draw(st.integers(1, 3))):
        name = f"o{outer}"
        milliseconds[name] = draw(st.integers(1, 20))
        start = len(segments)
        stretches = [(name,)]
        for inner in range(draw(st.integers(0, 2))):
            milliseconds[f"{name}.{inner}"] = draw(st.integers(1, 10))
            stretches += [(name, f"{name}.{inner}"), (name,)]
        for blocks in stretches:
            at = len(segments)
            own, entering, product = draw(size), draw(size), draw(size)
            segments.append(Segment(blocks, own + product + draw(size)))
            saved.append(Saved(own, (at,)))
            saved.append(Saved(product, (at,), held=draw(st.booleans()), products=blocks))
            inputs = tuple(b for b in blocks if b not in segments[at - 1].blocks)
            if inputs:
                saved.append(Saved(entering, (at,), inputs))
        if draw(st.booleans()) and start > 1:  # something that two blocks use
            saved.append(Saved(draw(size), (start - 1, start), (name,)))
    segments.append(Segment((), draw(size)))
    selective = {
        name: draw(st.integers(0, int(cost)))
        for name, cost in milliseconds.items()
        if draw(st.booleans())
    }
    return Problem(milliseconds, segments, saved, selective)


@settings(max_examples=60, deadline=None)
@given(problems(), st.floats(0, 1))
def test_the_cheapest_of_all_sets(problem: Problem, share: float) -> None:
    low = min(peak_of(problem, chosen) for chosen in allowed(problem))
    assert lowest_peak(problem).peak == low
    budget = int(low + share * (peak_of(problem, ()) - low))
    found = cheapest_within(problem, budget)
    assert found is not None
    assert found.peak <= budget
    assert found.milliseconds == pytest.approx(brute(problem, budget))
    if low > 0:
        assert cheapest_within(problem, low - 1) is None


@pytest.mark.parametrize("layers", [16, 64, 144])
def test_segments_of_a_chain_take_the_square_root(layers: int) -> None:
    """Chen et al. 2016: n equal layers in k segments need k + n/k, least at the square root.

    The segments are candidates of every length; the solver finds the best length by itself.
    """
    best = {}
    for length in range(1, layers + 1):
        if layers % length:
            continue
        # A segment keeps its input (1); while it is gone through, its layers' outputs are back.
        count = layers // length
        names = [f"s{i}" for i in range(count)]
        problem = Problem(
            dict.fromkeys(names, float(length)),
            [Segment((n,), length) for n in names],
            [
                *(Saved(length - 1, (i,)) for i in range(count)),
                *(Saved(1, (i,), (names[i],)) for i in range(count)),
            ],
        )
        best[length] = lowest_peak(problem).peak
    shortest = min(best, key=lambda length: best[length])
    root = math.isqrt(layers)
    assert shortest == root
    assert best[root] == 2 * root - 1  # the segment under way holds its own input
    assert best[1] == layers


def test_revolve_bound_of_one_level() -> None:
    """Griewank and Walther 2000: with s snapshots and each step run at most once more (r = 1),
    a chain of binomial(s + r, s) = s + 1 parts can be reversed."""
    snapshots = 5
    problem = chain(snapshots + 1, inner=10, boundary=1, head=0)
    # All parts checkpointed: a snapshot before each but the one under way, plus its inside.
    found = lowest_peak(problem)
    assert found.peak == snapshots * 1 + 11
    assert len(found.blocks) >= snapshots
    assert found.milliseconds <= snapshots + 1


def test_equal_blocks_take_as_few_as_needed() -> None:
    problem = chain(12, inner=9, boundary=1)
    assert peak_of(problem, ()) == 120
    found = cheapest_within(problem, 84)
    assert found is not None
    assert found.milliseconds == 4
    assert cheapest_within(problem, 200).blocks == ()  # type: ignore[union-attr]


def test_a_block_and_its_inside_are_not_both_taken() -> None:
    problem = Problem(
        {"a": 2.0, "a.x": 1.0},
        [Segment(("a", "a.x"), 8), Segment(("a",), 8), Segment((), 1)],
        [Saved(8, (0,)), Saved(8, (1,)), Saved(1, (0,), ("a", "a.x"))],
    )
    assert cheapest_within(problem, 16).blocks == ("a.x",)  # type: ignore[union-attr]


def test_what_another_block_saves_too_is_kept() -> None:
    problem = Problem({"a": 1.0}, [Segment(("a",), 5), Segment((), 5)], [Saved(5, (0, 1))])
    assert peak_of(problem, (Way("a"),)) == peak_of(problem, ()) == 10
    assert cheapest_within(problem, 9) is None


def test_products_are_kept_in_as_many_blocks_as_fit() -> None:
    """Kept products make recomputation cheap; a tight budget takes whole blocks instead."""
    names = [f"b{i}" for i in range(8)]
    problem = Problem(
        dict.fromkeys(names, 10.0),
        [Segment((n,), 10) for n in names],
        [
            *(Saved(5, (i,), products=(names[i],)) for i in range(8)),
            *(Saved(4, (i,)) for i in range(8)),
            *(Saved(1, (i,), (names[i],)) for i in range(8)),
        ],
        dict.fromkeys(names, 1.0),
    )
    assert peak_of(problem, ()) == 80
    loose, tight = cheapest_within(problem, 60), cheapest_within(problem, 40)
    assert loose is not None
    assert tight is not None
    assert loose.milliseconds == 5
    assert all(way.keeps_products for way in loose.ways)
    assert tight.peak <= 40
    assert {way.keeps_products for way in tight.ways} == {False, True}
    assert tight.milliseconds == brute(problem, 40)
