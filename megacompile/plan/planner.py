"""The planner: which steps each candidate takes, found and checked before anything is imported.

Pure: it reads pass classes and the spec, never a model. A candidate's plan is the shortest path
from the source's form to a form its backend accepts, through the user's passes in their order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from megacompile.errors import MegacompileError, PlanError, raise_all
from megacompile.plan import registry
from megacompile.plan.backends import Machine
from megacompile.plan.baselines import EAGER_BASELINES, baseline_names, plain_engine
from megacompile.plan.candidates import CandidatePlan, CandidatePlanner
from megacompile.plan.checks import TRAINING, data_problems, target_problems, workload_problems
from megacompile.plan.items import Items, VariantItems
from megacompile.spec import Item, Loaded, Spec


@dataclass(frozen=True)
class Plan:
    """What a build will do: candidates in the spec's order, then plain baselines."""

    spec: Spec
    target: Machine
    candidates: tuple[CandidatePlan, ...]
    baselines: tuple[str, ...]
    lowered_baselines: tuple[CandidatePlan, ...]


def make_plan(loaded: Loaded, target: Callable[[Spec], Machine], quantized: bool = False) -> Plan:
    """Resolve a spec into steps.

    `target` settles device, threads and instruction sets; `quantized` says that an ONNX source
    holds quantized weights already.

    Raises:
        Problems, SpecError, PlanError: everything that is wrong, of all candidates, at once.
    """
    problems: list[MegacompileError] = list(loaded.problems)
    variants = _variants(loaded, problems)
    training = loaded.sections.get("workload") == TRAINING
    problems += workload_problems(training, variants)
    baselines = baseline_names(loaded, problems)
    if loaded.spec is None or problems:
        raise_all(problems)
    spec = loaded.spec
    assert spec is not None
    machine = target(spec)

    planner = CandidatePlanner(spec, machine, quantized)
    candidates = _candidates(planner, variants, problems)
    lowered = _lowered_baselines(planner, loaded, baselines, problems)
    plain = plain_engine(loaded, planner, candidates)
    if plain is not None:
        baselines.append(plain.backend.name)
        lowered.append(plain)
    problems += data_problems(spec, candidates)
    problems += target_problems(machine, candidates)
    raise_all(problems)
    return Plan(spec, machine, tuple(candidates), tuple(baselines), tuple(lowered))


def _variants(loaded: Loaded, problems: list[MegacompileError]) -> list[VariantItems]:
    """The spec's variants, or one named `default`: the common passes, then a variant's own."""
    items, sections = Items(loaded, problems), loaded.sections
    common = items.passes(sections.get("passes") or [], ("passes",))
    default = items.backends(sections.get("backends"), ("backends",))
    if sections.get("workload") == TRAINING and not default:
        default = items.backends([Item(name=TRAINING)], ("workload",))
    variants = sections.get("variants") or {}
    if not variants:
        return [VariantItems("default", common, default)]
    found = []
    for name, variant in variants.items():
        own = items.passes(variant.passes, ("variants", name, "passes"))
        backends = items.backends(variant.backends, ("variants", name, "backends"))
        found.append(VariantItems(name, common + own, backends or default))
    return found


def _candidates(
    planner: CandidatePlanner, variants: Sequence[VariantItems], problems: list[MegacompileError]
) -> list[CandidatePlan]:
    """Every variant on each of its backends; those that have no plan are problems."""
    candidates: list[CandidatePlan] = []
    for variant in variants:
        for backend, where in variant.backends:
            name = f"{variant.name}/{backend.name}"
            if name in {one.name for one in candidates}:
                what = f"candidate '{name}' stands twice"
                remedy = "give the variants different names"
                problems.append(PlanError(what=what, where=where, remedy=remedy))
                continue
            found = planner.plan(name, backend, where, variant.passes, variant.name)
            if isinstance(found, CandidatePlan):
                candidates.append(found)
            else:
                problems.append(found)
    return candidates


def _lowered_baselines(
    planner: CandidatePlanner,
    loaded: Loaded,
    names: Sequence[str],
    problems: list[MegacompileError],
) -> list[CandidatePlan]:
    """The unchanged model on every baseline that is a backend."""
    where = loaded.document.where(("benchmark", "baselines"))
    lowered: list[CandidatePlan] = []
    for name in names:
        if name in EAGER_BASELINES:
            continue
        found = planner.plan(name, registry.backend_class(name)(), where)
        if isinstance(found, CandidatePlan):
            lowered.append(found)
        else:
            problems.append(found)
    return lowered
