"""Step 3: baselines and engines, each in its worker, evaluated and raced."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

from megacompile.errors import DataError, MegacompileError
from megacompile.job.context import Job, Outcome
from megacompile.measure.session import AGAIN, Contestant, Measured, Session
from megacompile.original import Original
from megacompile.plan import EAGER_BASELINES


def measure(
    job: Job, original: Original, outcomes: list[Outcome], lowered: list[Outcome],
    remembered: bool,
) -> tuple[dict[str, Measured], bool]:  # fmt: skip
    """Race everything that was built. The second result says that the model is not the
    recorded one any more."""
    built = [o for o in outcomes if o.folder is not None]
    if not built:
        return {}, False
    contestants = _baselines(job, lowered)
    contestants += [_contestant(o, o.plan.name, evaluates=True) for o in built]
    common = {"spec": job.spec_data, "base": str(job.base),
              "machine": dataclasses.asdict(job.machine),
              "original": original.to_dict()}  # fmt: skip
    wants_metric = job.spec.data.evaluation is not None
    start = time.perf_counter()
    evaluating = job.clock.evaluation
    with Session(common, job.logs / "measure", job.machine.threads, job.say) as session:
        for contestant in contestants:
            loaded = session.load(contestant).loaded
            if contestant.confirm and remembered and _changed(job, loaded, original):
                return {}, True
        for contestant in contestants:
            if wants_metric and contestant.evaluates:
                with job.clock.part("evaluation"):
                    _evaluate(job, session, contestant.name)
        for number, point in enumerate(job.spec.points()):
            session.race(point, job.spec.benchmark.seconds, job.spec.seed + number)
        measured = session.measured
    evaluating = job.clock.evaluation - evaluating
    job.clock.measuring += time.perf_counter() - start - evaluating
    first = measured[contestants[0].name]
    if first.error is not None:
        raise first.error  # without the first baseline there is nothing to compare with
    return measured, False


def _evaluate(job: Job, session: Session, name: str) -> None:
    session.evaluate(name)
    error = session.measured[name].error
    # A hook that fails on the original is the user's to mend: nothing can be judged without.
    if error is not None and (name == job.plan.baselines[0] or isinstance(error, DataError)):
        raise error


def _baselines(job: Job, lowered: list[Outcome]) -> list[Contestant]:
    by_name = {o.plan.backend.name: o for o in lowered}
    found: list[Contestant] = []
    for name in job.plan.baselines:
        if name in EAGER_BASELINES:
            found.append(Contestant(name, name))
        elif by_name[name].folder is not None:
            found.append(_contestant(by_name[name], name))
    if not found:
        failed = next((o.error for o in lowered if o.error), None)
        raise failed or MegacompileError(what="no baseline can be measured here",
                                         where="benchmark.baselines")  # fmt: skip
    first = dataclasses.replace(found[0], evaluates=True,
                                confirm=found[0].backend in EAGER_BASELINES)  # fmt: skip
    again = dataclasses.replace(found[0], name=found[0].name + AGAIN)
    return [first, again, *found[1:]]


def _changed(job: Job, loaded: dict[str, Any], original: Original) -> bool:
    if not loaded or "fingerprint" not in loaded:
        return False
    return bool(loaded["fingerprint"] != original.fingerprint
                or loaded.get("calibration_hash") != original.calibration_hash)  # fmt: skip


def _contestant(outcome: Outcome, name: str, evaluates: bool = False) -> Contestant:
    backend = outcome.plan.backend
    return Contestant(name, backend.name, backend.model_dump(mode="json"), str(outcome.folder),
                      evaluates=evaluates)  # fmt: skip
