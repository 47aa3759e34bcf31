"""Why a candidate has no plan: which two steps clash, why, and what to write instead."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from megacompile.errors import PlanError
from megacompile.plan import registry
from megacompile.plan.backends import Backend, Machine
from megacompile.plan.declarations import consumes, produces
from megacompile.plan.items import PassItem
from megacompile.plan.passes import Fact, Traits
from megacompile.plan.routes import State, why_not


def clash(
    passes: Sequence[PassItem],
    backend: Backend,
    machine: Machine,
    reachable: Collection[State],
    goals: list[State],
    name: str,
    where: str,
) -> PlanError:
    """Which two steps don't fit together, why, and what to write instead."""
    if goals:
        reason, remedy = backend.refusal(goals[0].facts, machine) or ("", "")
        what = f"candidate '{name}' is impossible: {reason}"
        return PlanError(what=what, where=where, remedy=remedy)
    last = max(state.layer for state in reachable)
    reached = [state for state in reachable if state.layer == last]
    if last < len(passes):
        return _stuck(passes[last], passes[:last], reached, backend.traits(), name)
    leaver = _leaver(reachable, passes) if "Training" in backend.accepts else None
    if leaver is not None:
        return PlanError(
            what=f"candidate '{name}': pass '{leaver.label}' can't run in workload 'training'",
            where=leaver.where,
            expected="a pass on a module or on its training step",
            got="one that makes an inference model",
            remedy=f"leave '{leaver.label}' out, or build "
            "the trained model with a spec of workload inference",
        )
    after = f" after '{passes[-1].label}'" if passes else ""
    return PlanError(
        what=f"candidate '{name}': backend '{backend.name}' can't take the model",
        where=where,
        expected=" or ".join(backend.accepts),
        got=_forms(reached) + after,
        cause=_conversion_reason(reached, backend.accepts, backend.traits()),
        remedy=_other_backends(reached),
    )


def _stuck(
    item: PassItem, before: Sequence[PassItem], reached: list[State], traits: Traits, name: str
) -> PlanError:
    """A pass that runs in none of the states that the passes before it lead to."""
    culprit = _culprit(item, before, reached)
    if culprit is None:
        after = ""
        remedy = f"leave '{item.label}' out of this variant, or use another backend"
    else:
        after = f" after '{culprit.label}'"
        remedy = f"put '{item.label}' before '{culprit.label}', or leave one of them out"
    return PlanError(
        what=f"candidate '{name}': pass '{item.label}' can't run{after}",
        where=item.where,
        cause=f"'{item.label}' " + "; ".join(_reasons(item, reached, traits)),
        got=f"the model is {_forms(reached)} there",
        remedy=remedy,
    )


def _forms(states: list[State]) -> str:
    return " or ".join(sorted({state.form for state in states}))


def _reasons(item: PassItem, reached: list[State], traits: Traits) -> list[str]:
    """Why no class of a pass runs in any of the states; that another form would be needed is said
    only where nothing else is wrong."""
    found: dict[str, bool] = {}
    for instance in item.instances:
        resolved = instance.resolve(traits)
        for state in reached:
            why = why_not(resolved, state, traits)
            if why:
                found[why] = consumes(type(resolved)) == state.form
    return [why for why, own in found.items() if own] or list(found)


def _leaver(reachable: Collection[State], passes: Sequence[PassItem]) -> PassItem | None:
    """The first pass after which the model is no module and no training step any more."""
    kept = {state.layer for state in reachable if state.form in ("Eager", "Training")}
    return next((item for number, item in enumerate(passes, 1) if number not in kept), None)


def _culprit(item: PassItem, before: Sequence[PassItem], reached: list[State]) -> PassItem | None:
    """The latest earlier pass that ended what this one needs."""
    facts = frozenset[Fact]().union(*(s.facts for s in reached))
    lacking = frozenset[Fact]().union(*(i.requires for i in item.instances)) - facts
    for earlier in reversed(before):
        if any(instance.invalidates & lacking for instance in earlier.instances):
            return earlier
    return before[-1] if before and not lacking else None


def _conversion_reason(
    reached: list[State], accepts: tuple[str, ...], traits: Traits
) -> str | None:
    """What stands in the way of a conversion to a form that the backend accepts."""
    for cls in registry.conversions():
        if produces(cls) not in accepts:
            continue
        for state in reached:
            reason = why_not(cls(), state, traits) if consumes(cls) == state.form else None
            if reason:
                return f"conversion '{cls.name}' {reason}"
    return f"no conversion leads to {' or '.join(accepts)}"


def _other_backends(reached: list[State]) -> str | None:
    forms = {s.form for s in reached}
    accepted = {name: registry.backend_class(name).accepts for name in registry.backend_table()}
    fitting = [name for name, accepts in accepted.items() if forms & set(accepts)]
    return f"use one of: {', '.join(fitting)}" if fitting else None
