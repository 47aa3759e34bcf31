"""One candidate: the shortest way from the source's form to one that its backend accepts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from megacompile.errors import PlanError
from megacompile.plan.backends import Backend, Machine
from megacompile.plan.clash import clash
from megacompile.plan.items import PassItem
from megacompile.plan.passes import Effect, Fact
from megacompile.plan.routes import PlannedStep, State, reachable, shortest
from megacompile.spec import Spec

SOURCE_FORMS = {"python": "Eager", "onnx": "Onnx", "exported": "Eager", "torchscript": "Scripted"}


@dataclass(frozen=True)
class CandidatePlan:
    """The steps of one candidate; `unavailable` says why it can't be built here."""

    name: str
    variant: str
    backend: Backend
    steps: tuple[PlannedStep, ...]
    facts: frozenset[Fact]
    form: str
    unavailable: str | None = None
    remedy: str | None = None

    @property
    def effect(self) -> Effect:
        """The weakest promise on the way."""
        effects = [step.pass_.promised() for step in self.steps]
        return max(effects, key=lambda e: e.rank, default=Effect.EXACT)


def source_facts(spec: Spec, quantized: bool = False) -> frozenset[Fact]:
    """What is known of a model before any pass."""
    if quantized:
        return frozenset({Fact.QUANTIZED})
    facts = {Fact.FLOAT32_WEIGHTS, Fact.UNQUANTIZED}
    if spec.model.kind == "python":
        facts.add(Fact.TRAINABLE)
    return frozenset(facts)


@dataclass(frozen=True)
class CandidatePlanner:
    """Plans candidates of one spec for one machine; `quantized`: the source's weights are."""

    spec: Spec
    machine: Machine
    quantized: bool

    def plan(
        self,
        name: str,
        backend: Backend,
        where: str,
        passes: Sequence[PassItem] = (),
        variant: str = "",
    ) -> CandidatePlan | PlanError:
        """The candidate's steps, or why there are none; without passes, the unchanged model's."""
        facts = source_facts(self.spec, self.quantized)
        start = State(0, SOURCE_FORMS[self.spec.model.kind], facts)
        graph = reachable(start, passes, backend.traits())
        goals = [s for s in graph if s.layer == len(passes) and s.form in backend.accepts]
        allowed = [s for s in goals if backend.refusal(s.facts, self.machine) is None]
        if not allowed:
            return clash(passes, backend, self.machine, graph, goals, name, where)
        goal, steps = shortest(graph, start, allowed, backend.accepts)
        reason, remedy = _unavailable(backend, self.machine, steps)
        return CandidatePlan(name, variant, backend, steps, goal.facts, goal.form, reason, remedy)


def _unavailable(
    backend: Backend, machine: Machine, steps: Sequence[PlannedStep]
) -> tuple[str | None, str | None]:
    """Why a candidate can't be built here, and the remedy: the backend's own reason first."""
    available = backend.availability(machine)
    if not available.yes:
        return available.reason, available.remedy
    for step in steps:
        absent = step.pass_.missing_libraries()
        if absent:
            reason = f"pass '{step.pass_.name}' needs {', '.join(absent)}, not installed"
            return reason, "pip install 'megacompile[all]'"
    return None, available.remedy
