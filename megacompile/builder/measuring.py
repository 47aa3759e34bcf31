"""Step 3: the original's metric, then all engines and baselines raced, then their metrics."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

from megacompile.builder.job import Job, Outcome
from megacompile.errors import MegacompileError
from megacompile.measure import AGAIN, Contestant, Measured, Original, Session
from megacompile.plan import EAGER_BASELINES, LAST_FORM
from megacompile.report import Metric


def measure(
    job: Job,
    original: Original,
    outcomes: list[Outcome],
    lowered: list[Outcome],
    remembered: bool,
) -> tuple[dict[str, Measured], bool]:
    """Race everything that was built. The second result says that the model is not the
    recorded one any more."""
    built = [o for o in outcomes if o.folder is not None]
    if not built:
        return {}, False
    if job.machine.absent():
        return _evaluate_last_forms(job, original, built, remembered)
    contestants = _baselines(job, lowered)
    contestants += [_contestant(o, o.plan.name) for o in built]
    start, evaluating = time.perf_counter(), job.clock.evaluation
    with _session(job, original) as session:
        for contestant in contestants:
            loaded = session.load(contestant).loaded
            if contestant.confirm and remembered and _changed(job, loaded, original):
                return {}, True
        for number, point in enumerate(job.spec.points()):
            session.race(point, job.spec.benchmark.seconds, job.spec.seed + number)
        job.needs = session.count(contestants[0].name, job.spec.points()[0])
        # After the races: what a hook leaves in a worker's memory is not the engine's.
        if job.spec.data.evaluation is not None:
            with job.clock.part("evaluation"):
                for outcome in built:
                    session.evaluate(outcome.plan.name)
        measured = session.measured
    evaluating = job.clock.evaluation - evaluating
    job.clock.measuring += time.perf_counter() - start - evaluating
    first = measured[contestants[0].name]
    if first.error is not None:
        raise first.error  # without the first baseline there is nothing to compare with
    return measured, False


def evaluate_original(
    job: Job, original: Original, remembered: bool
) -> tuple[dict[str, Metric], bool]:
    """The user's metric on the original, before anything is built: a hook that fails is found
    now. The second result says that the model is not the recorded one any more.

    Raises:
        DataError: the hook raises, or returns something else than finite numbers.
    """
    if job.spec.data.evaluation is None:
        return {}, False
    name = "the original"
    with job.clock.part("evaluation"), _session(job, original) as session:
        loaded = session.load(Contestant(name, EAGER_BASELINES[0], confirm=True))
        if loaded.error is None:
            if remembered and _changed(job, loaded.loaded, original):
                return {}, True
            session.evaluate(name)
    if loaded.error is not None:
        raise loaded.error
    return metrics_of(loaded), False


def _evaluate_last_forms(
    job: Job, original: Original, built: list[Outcome], remembered: bool
) -> tuple[dict[str, Measured], bool]:
    """The user's metric where no engine can run: on the ONNX file each was built from, by this
    CPU. Nothing is timed."""
    with job.clock.part("evaluation"), _session(job, original) as session:
        if remembered:
            source = session.load(Contestant("the original", EAGER_BASELINES[0], confirm=True))
            if source.error is None and _changed(job, source.loaded, original):
                return {}, True
        if job.spec.data.evaluation is None:
            return {}, False
        for outcome in built:
            name = outcome.plan.name
            session.load(Contestant(name, LAST_FORM, folder=str(outcome.folder)))
            session.evaluate(name)
        return {o.plan.name: session.measured[o.plan.name] for o in built}, False


def metrics_of(measured: Measured) -> dict[str, Metric]:
    """The user's metric of one engine as the report holds it."""
    return {name: Metric(**value) for name, value in measured.metrics.items()}


def _session(job: Job, original: Original) -> Session:
    machine = job.machine
    if machine.absent():
        machine = dataclasses.replace(machine, device="cpu")
    common = {
        "spec": job.spec_data,
        "base": str(job.base),
        "machine": dataclasses.asdict(machine),
        "original": original.to_dict(),
    }
    return Session(common, job.logs / "measure", job.machine.threads, job.say)


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
        raise failed or MegacompileError(
            what="no baseline can be measured here", where="benchmark.baselines"
        )
    first = dataclasses.replace(found[0], confirm=found[0].backend in EAGER_BASELINES)
    again = dataclasses.replace(found[0], name=found[0].name + AGAIN)
    return [first, again, *found[1:]]


def _changed(job: Job, loaded: dict[str, Any], original: Original) -> bool:
    if not loaded or "fingerprint" not in loaded:
        return False
    return bool(
        loaded["fingerprint"] != original.fingerprint
        or loaded.get("calibration_hash") != original.calibration_hash
    )


def _contestant(outcome: Outcome, name: str) -> Contestant:
    backend = outcome.plan.backend
    return Contestant(name, backend.name, backend.model_dump(mode="json"), str(outcome.folder))
