"""The planner: which steps each candidate takes, found and checked before anything is imported.

Pure: it reads pass classes and the spec, never a model. A candidate's plan is the shortest path
from the source's form to a form its backend accepts, through the user's passes in their order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from megacompile.errors import MegacompileError, PlanError, SpecError, did_you_mean
from megacompile.plan import registry
from megacompile.plan.backends import Backend, Machine
from megacompile.plan.clash import clash
from megacompile.plan.items import Items, PassItem
from megacompile.plan.passes import Effect, Fact, Pass
from megacompile.plan.routes import PlannedStep, State, reachable, shortest
from megacompile.spec import Item, Loaded, Spec

SOURCE_FORMS = {"python": "Eager", "onnx": "Onnx", "exported": "Eager", "torchscript": "Scripted"}
EAGER_BASELINES = ("eager", "torch.compile")
PLAIN_ENGINE = "tensorrt"
# What is evaluated on this CPU in place of an engine for other hardware.
LAST_FORM = "the ONNX file"
TRAINING = "training"  # the backend and the workload


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


@dataclass(frozen=True)
class Plan:
    """What a build will do: candidates in the spec's order, then plain baselines."""

    spec: Spec
    target: Machine
    candidates: tuple[CandidatePlan, ...]
    baselines: tuple[str, ...]
    lowered_baselines: tuple[CandidatePlan, ...]


def source_facts(spec: Spec, quantized: bool = False) -> frozenset[Fact]:
    """What is known of a model before any pass."""
    if quantized:
        return frozenset({Fact.QUANTIZED})
    facts = {Fact.FLOAT32_WEIGHTS, Fact.UNQUANTIZED}
    if spec.model.kind == "python":
        facts.add(Fact.TRAINABLE)
    return frozenset(facts)


def make_plan(loaded: Loaded, target: Callable[[Spec], Machine], quantized: bool = False) -> Plan:
    """Resolve a spec into steps.

    `target` settles device, threads and instruction sets; `quantized` says that an ONNX source
    holds quantized weights already.

    Raises:
        Problems, SpecError, PlanError: everything that is wrong, of all candidates, at once.
    """
    from megacompile.errors import raise_all

    problems: list[MegacompileError] = list(loaded.problems)
    items = Items(loaded, problems)
    common = items.passes(loaded.sections.get("passes") or [], ("passes",))
    raw_variants = loaded.sections.get("variants") or {}
    default = items.backends(loaded.sections.get("backends"), ("backends",))
    if loaded.sections.get("workload") == "training" and not default:
        default = items.backends([Item(name=TRAINING)], ("workload",))
    routes: list[tuple[str, list[PassItem], list[tuple[Backend, str]]]] = []
    for name, variant in raw_variants.items():
        own = items.passes(variant.passes, ("variants", name, "passes"))
        backends = items.backends(variant.backends, ("variants", name, "backends"))
        routes.append((name, common + own, backends or default))
    if not raw_variants:
        routes.append(("default", common, default))
    problems += _workload_problems(loaded, routes)
    baselines = _baselines(loaded, problems)
    if loaded.spec is None or problems:
        raise_all(problems)
    spec = loaded.spec
    assert spec is not None
    machine = target(spec)

    candidates: list[CandidatePlan] = []
    for variant, passes, backends in routes:
        for backend, where in backends:
            name = f"{variant}/{backend.name}"
            if name in {c.name for c in candidates}:
                problems.append(
                    PlanError(
                        what=f"candidate '{name}' stands twice",
                        where=where,
                        remedy="give the variants different names",
                    )
                )
                continue
            found = _route(spec, machine, name, variant, passes, backend, where, quantized)
            if isinstance(found, CandidatePlan):
                candidates.append(found)
            else:
                problems.append(found)
    lowered: list[CandidatePlan] = []
    for name in baselines:
        if name in EAGER_BASELINES:
            continue
        backend = registry.backend_class(name)()
        found = _route(
            spec,
            machine,
            name,
            "",
            [],
            backend,
            loaded.document.where(("benchmark", "baselines")),
            quantized,
        )
        if isinstance(found, CandidatePlan):
            lowered.append(found)
        else:
            problems.append(found)
    plain = _plain_engine(loaded, spec, machine, candidates, quantized)
    if plain is not None:
        baselines.append(plain.backend.name)
        lowered.append(plain)
    problems += _data_problems(loaded, spec, candidates)
    problems += _target_problems(machine, candidates)
    raise_all(problems)
    return Plan(spec, machine, tuple(candidates), tuple(baselines), tuple(lowered))


def _workload_problems(
    loaded: Loaded, routes: list[tuple[str, list[PassItem], list[tuple[Backend, str]]]]
) -> Iterator[PlanError]:
    """Backends of the other workload, each named once."""
    training = loaded.sections.get("workload") == TRAINING
    seen: set[str] = set()
    for _, _, backends in routes:
        for backend, where in backends:
            if (backend.name == TRAINING) is not training and where not in seen:
                seen.add(where)
                yield PlanError(
                    what=f"backend '{backend.name}' is not one of workload "
                    f"'{'training' if training else 'inference'}'",
                    where=where,
                    expected=TRAINING if training else "an inference engine",
                    remedy="leave `backends` out" if training else "set workload: training",
                )


def _plain_engine(
    loaded: Loaded, spec: Spec, machine: Machine, candidates: list[CandidatePlan], quantized: bool
) -> CandidatePlan | None:
    """The unchanged model on TensorRT, as one more baseline where the spec names none: it travels
    in a bundle for another machine, where eager PyTorch can't."""
    named = next((c.backend.name for c in candidates if c.backend.name == PLAIN_ENGINE), None)
    if named is None or spec.benchmark.baselines is not None:
        return None
    found = _route(
        spec,
        machine,
        named,
        "",
        [],
        registry.backend_class(named)(),
        loaded.document.where(()),
        quantized,
    )
    return found if isinstance(found, CandidatePlan) and found.unavailable is None else None


def _data_problems(
    loaded: Loaded, spec: Spec, candidates: list[CandidatePlan]
) -> Iterator[PlanError]:
    """Passes that need a hook the spec hasn't, each place once."""
    seen: set[tuple[str | None, str]] = set()
    for step in (step for candidate in candidates for step in candidate.steps):
        for kind in _lacking(step.pass_, spec):
            if (step.where, kind) not in seen:
                seen.add((step.where, kind))
                yield PlanError(
                    what=f"'{step.pass_.name}' needs {kind} data under these options",
                    where=step.where,
                    got=f"no data.{kind}",
                    expected=HOOKS[kind][0],
                    remedy=HOOKS[kind][1],
                )


def _target_problems(machine: Machine, candidates: list[CandidatePlan]) -> Iterator[PlanError]:
    """What passes ask for and the target can't do, each place once."""
    seen: set[tuple[str | None, str]] = set()
    for step in (step for candidate in candidates for step in candidate.steps):
        found = step.pass_.unsupported(machine.device, machine.isa)
        if found is not None and (step.where, found.what) not in seen:
            seen.add((step.where, found.what))
            yield PlanError(**{**found.fields(), "where": step.where})


HOOKS = {
    "calibration": (
        "data.calibration: {python: FILE.py:NAME, samples: N}",
        "add it, or choose a method that needs none (dynamic, weight-only)",
    ),
    "evaluation": ("data.evaluation: {python: FILE.py:NAME}", "add it, or leave `monitor` at loss"),
}
"""A hook of `data` -> how it is written, and what else can be done."""


def _lacking(pass_: Pass[Any, Any], spec: Spec) -> Iterator[str]:
    if pass_.needs_calibration() and spec.data.calibration is None:
        yield "calibration"
    if pass_.needs_evaluation() and spec.data.evaluation is None:
        yield "evaluation"


def _baselines(loaded: Loaded, problems: list[MegacompileError]) -> list[str]:
    benchmark, model = loaded.sections.get("benchmark"), loaded.sections.get("model")
    if benchmark is None or model is None or loaded.sections.get("workload") == TRAINING:
        return []
    torch_source = model.kind != "onnx"
    if benchmark.baselines is None:
        return list(EAGER_BASELINES) if torch_source else ["onnxruntime"]
    known = [*EAGER_BASELINES, *registry.backend_table()]
    for index, name in enumerate(benchmark.baselines):
        where = loaded.document.where(("benchmark", "baselines", index))
        if name not in known:
            problems.append(
                SpecError(
                    what=f"unknown baseline '{name}'", where=where, remedy=did_you_mean(name, known)
                )
            )
        elif name in EAGER_BASELINES and not torch_source:
            problems.append(
                SpecError(
                    what=f"baseline '{name}' needs a PyTorch model",
                    where=where,
                    got="an ONNX file",
                    remedy="use onnxruntime or openvino",
                )
            )
        elif benchmark.baselines.index(name) != index:
            problems.append(SpecError(what=f"baseline '{name}' stands twice", where=where))
    if not benchmark.baselines:
        problems.append(
            SpecError(
                what="no baseline",
                remedy="name one, or leave the key out",
                where=loaded.document.where(("benchmark", "baselines")),
            )
        )
    return list(benchmark.baselines)


def _route(
    spec: Spec,
    machine: Machine,
    name: str,
    variant: str,
    passes: list[PassItem],
    backend: Backend,
    where: str,
    quantized: bool,
) -> CandidatePlan | PlanError:
    traits = backend.traits()
    start = State(0, SOURCE_FORMS[spec.model.kind], source_facts(spec, quantized))
    graph = reachable(start, passes, traits)
    goals = [s for s in graph if s.layer == len(passes) and s.form in backend.accepts]
    allowed = [s for s in goals if backend.refusal(s.facts, machine) is None]
    if not allowed:
        return clash(start, passes, backend, machine, graph, goals, name, where)
    goal, steps = shortest(graph, start, allowed, backend.accepts)
    available = backend.availability(machine)
    reason, remedy = available.reason, available.remedy
    for step in steps:
        absent = step.pass_.missing_libraries()
        if absent and reason is None:
            reason = f"pass '{step.pass_.name}' needs {', '.join(absent)}, not installed"
            remedy = "pip install 'megacompile[all]'"
    return CandidatePlan(name, variant, backend, steps, goal.facts, goal.form, reason, remedy)
