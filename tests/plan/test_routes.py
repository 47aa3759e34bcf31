"""States, passes and conversions between them, and the shortest way through."""

from __future__ import annotations

from typing import ClassVar

import pytest

from megacompile.models import Eager, Exported
from megacompile.plan import registry
from megacompile.plan.items import PassItem
from megacompile.plan.passes import Effect, Fact, Pass, PassContext, Result, Traits
from megacompile.plan.routes import State, reachable, shortest, why_not

from .toy import plan_of

TRAITS = Traits("any")


class Half(Pass[Eager, Eager]):
    """Needs float weights and ends them."""

    name: ClassVar[str] = "half"
    effect: ClassVar[Effect] = Effect.NUMERIC
    requires: ClassVar[frozenset[Fact]] = frozenset({Fact.FLOAT32_WEIGHTS})
    provides: ClassVar[frozenset[Fact]] = frozenset({Fact.FLOAT16})
    invalidates: ClassVar[frozenset[Fact]] = frozenset({Fact.FLOAT32_WEIGHTS})

    def run(self, model: Eager, ctx: PassContext) -> Result[Eager]:
        raise NotImplementedError


class Convert(Pass[Eager, Exported]):
    """A conversion that the planner may insert."""

    name: ClassVar[str] = "convert"
    effect: ClassVar[Effect] = Effect.EXACT
    requires: ClassVar[frozenset[Fact]] = frozenset()
    provides: ClassVar[frozenset[Fact]] = frozenset()
    invalidates: ClassVar[frozenset[Fact]] = frozenset({Fact.TRAINABLE})
    insertable: ClassVar[bool] = True

    def run(self, model: Eager, ctx: PassContext) -> Result[Exported]:
        raise NotImplementedError


START = State(0, "Eager", frozenset({Fact.FLOAT32_WEIGHTS, Fact.TRAINABLE}))
HALF = PassItem("half", "spec:1:1", (Half(),))


@pytest.fixture
def one_conversion(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "conversions", lambda: (Convert,))


def test_one_name_serves_every_form() -> None:
    plan = plan_of(passes=["simplify"], backends=["onnxruntime", "aotinductor", "torchscript"])
    forms = {c.backend.name: c.form for c in plan.candidates}
    assert forms == {"onnxruntime": "Onnx", "aotinductor": "Exported", "torchscript": "Scripted"}


def test_why_a_pass_can_not_run() -> None:
    assert why_not(Half(), START, TRAITS) is None
    exported = State(0, "Exported", START.facts)
    assert why_not(Half(), exported, TRAITS) == "works on Eager, not on Exported"
    bare = State(0, "Eager", frozenset())
    assert why_not(Half(), bare, TRAITS) == "needs a model that is float32 weights"


@pytest.mark.usefixtures("one_conversion")
def test_facts_change_with_every_step() -> None:
    facts = {(s.layer, s.form): s.facts for s in reachable(START, [HALF], TRAITS)}
    assert facts == {
        (0, "Eager"): START.facts,
        (0, "Exported"): {Fact.FLOAT32_WEIGHTS},
        (1, "Eager"): {Fact.FLOAT16, Fact.TRAINABLE},
        (1, "Exported"): {Fact.FLOAT16},
    }


@pytest.mark.usefixtures("one_conversion")
def test_the_way_keeps_the_users_order_and_marks_what_was_inserted() -> None:
    graph = reachable(START, [HALF], TRAITS)
    goal = State(1, "Exported", frozenset({Fact.FLOAT16}))
    found, steps = shortest(graph, START, [goal], ["Exported"])
    assert found == goal
    assert [(s.pass_.name, s.inserted, s.where) for s in steps] == [
        ("half", False, "spec:1:1"),
        ("convert", True, None),
    ]


@pytest.mark.usefixtures("one_conversion")
def test_of_equally_near_goals_the_form_that_is_named_first_is_taken() -> None:
    graph = reachable(START, [], TRAITS)
    near, far = State(0, "Eager", START.facts), State(0, "Exported", frozenset(Half.requires))
    assert shortest(graph, START, [far, near], ["Exported", "Eager"])[0] == near
    twin = State(0, "Onnx", frozenset())
    graph.add_edge(START, twin, step=None, weight=1.0)
    assert shortest(graph, START, [far, twin], ["Onnx", "Exported"])[0] == twin
    assert shortest(graph, START, [far, twin], ["Exported", "Onnx"])[0] == far
