"""Where a model can get to: states of forms and facts, and the passes and conversions between
them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from megacompile.plan import registry
from megacompile.plan.declarations import consumes, produces
from megacompile.plan.items import PassItem
from megacompile.plan.passes import Fact, Pass, Traits

if TYPE_CHECKING:
    import networkx as nx


@dataclass(frozen=True)
class PlannedStep:
    """One pass with all options settled, and the form after it."""

    pass_: Pass[Any, Any]
    form: str
    inserted: bool
    where: str | None = None


@dataclass(frozen=True)
class State:
    """A point on the way: how many of the user's passes have run, the form and its facts."""

    layer: int
    form: str
    facts: frozenset[Fact]


def reachable(start: State, passes: Sequence[PassItem], traits: Traits) -> nx.DiGraph[State]:
    """All states that passes in their order, and conversions between them, lead to."""
    import networkx as nx  # takes longer to import than most commands take

    graph: nx.DiGraph[State] = nx.DiGraph()
    graph.add_node(start)
    waiting = [start]
    while waiting:
        state = waiting.pop()
        for step, after, weight in _edges(state, passes, traits):
            if after not in graph:
                waiting.append(after)
            if not graph.has_edge(state, after):
                graph.add_edge(state, after, step=step, weight=weight)
    return graph


def shortest(
    graph: nx.DiGraph[State], start: State, goals: Sequence[State], forms: Sequence[str]
) -> tuple[State, tuple[PlannedStep, ...]]:
    """The nearest goal, of equally near ones that whose form is named first; and the way to it."""
    import networkx as nx

    lengths: dict[State, float] = nx.single_source_dijkstra_path_length(graph, start)
    goal = min(goals, key=lambda state: (lengths[state], forms.index(state.form)))
    path: list[State] = nx.dijkstra_path(graph, start, goal)
    return goal, tuple(graph.edges[a, b]["step"] for a, b in pairwise(path))


def _edges(
    state: State, passes: Sequence[PassItem], traits: Traits
) -> Iterator[tuple[PlannedStep, State, float]]:
    if state.layer < len(passes):
        item = passes[state.layer]
        for instance in item.instances:
            resolved = instance.resolve(traits)
            if why_not(resolved, state, traits) is None:
                step = PlannedStep(resolved, produces(type(resolved)), False, item.where)
                yield step, _after(state, resolved, state.layer + 1), 1.0
    for cls in registry.conversions():
        resolved = cls().resolve(traits)
        if why_not(resolved, state, traits) is None:
            step = PlannedStep(resolved, produces(cls), True)
            # Early conversions are preferred: passes then work on the form that is lowered.
            yield step, _after(state, resolved, state.layer), 1.0 + 0.01 * state.layer


def _after(state: State, pass_: Pass[Any, Any], layer: int) -> State:
    facts = (state.facts - pass_.invalidates) | pass_.provided()
    return State(layer, produces(type(pass_)), facts)


def why_not(pass_: Pass[Any, Any], state: State, traits: Traits) -> str | None:
    """Why a pass can't run in a state; None if it can."""
    if consumes(type(pass_)) != state.form:
        return f"works on {consumes(type(pass_))}, not on {state.form}"
    lacking = pass_.requires - state.facts
    if lacking:
        return "needs a model that is " + ", ".join(sorted(f.value for f in lacking))
    return pass_.refusal(traits)
