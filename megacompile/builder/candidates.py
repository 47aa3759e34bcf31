"""Step 2: candidates, one process each; what is stored already starts none."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from megacompile.builder.job import Job, Outcome
from megacompile.builder.keys import FORM, keys_of
from megacompile.builder.manager import stored_record
from megacompile.errors import MegacompileError
from megacompile.measure import Original
from megacompile.plan import CandidatePlan
from megacompile.report import Step
from megacompile.system import Worker

CANDIDATE = "megacompile.builder.worker:serve"


class Workers:
    """Candidate processes, each started while the one before it is busy: what takes seconds to
    import is there when its turn comes. A context manager: an unused process ends with it.
    """

    def __init__(self, job: Job, count: int) -> None:
        self.job, self.count = job, count
        self.started = 0
        self.spare: Worker | None = None

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *exc: object) -> None:
        if self.spare is not None:
            self.spare.close()

    def warm_up(self) -> None:
        """Start the first process before its turn."""
        self.spare = self.spare or self._start()

    def take(self, name: str) -> Worker:
        """A process under the candidate's name."""
        worker = self.spare or self._start()
        worker.rename(name, self.job.log_of(name))
        self.spare = self._start() if self.started < self.count else None
        return worker

    def _start(self) -> Worker:
        self.started += 1
        worker = self.job.worker(f"waiting {self.started}", CANDIDATE)
        if self.job.spec.model.kind != "onnx":
            worker.request({"preload": True})
        return worker


def build_candidates(
    job: Job, plans: Sequence[CandidatePlan], original: Original, workers: Workers
) -> list[Outcome]:
    """Build one after the other; a failure is that candidate's own."""
    return [build_candidate(job, plan, original, workers) for plan in plans]


def all_stored(job: Job, plans: Sequence[CandidatePlan], original: Original) -> bool:
    """Whether no candidate will need a process."""
    wanted = [plan for plan in plans if not plan.unavailable]
    engines = [keys_of(p, job.spec, original, job.machine, job.base)[-1] for p in wanted]
    return all(job.cache.get(key) is not None for key in engines)


def build_candidate(job: Job, plan: CandidatePlan, original: Original, workers: Workers) -> Outcome:
    """One candidate out of the store, or built in a process of its own."""
    outcome = Outcome(plan)
    if plan.unavailable:
        job.listen("finished", candidate=plan.name, status="unavailable", note=plan.unavailable)
        return outcome
    keys = keys_of(plan, job.spec, original, job.machine, job.base)
    if not _from_cache(job, outcome, keys):
        outcome.steps.clear()
        _in_process(job, outcome, original, workers)
    status = "failed" if outcome.error else "built"
    note = outcome.error.what if outcome.error else None
    job.listen("finished", candidate=plan.name, status=status, note=note)
    return outcome


def _from_cache(job: Job, outcome: Outcome, keys: list[str]) -> bool:
    """Whether every step and the engine are stored; then no process is needed."""
    if job.options.dump is not None:
        return False
    entries = [job.cache.get(key) for key in keys]
    if not all(entries) or not job.cache.get(keys[-1], check=True):
        return False
    records = [stored_record(entry) for entry in entries if entry is not None]
    outcome.steps, outcome.lowering = records[:-1], records[-1]
    _from_engine(job, outcome, keys[-1])
    return True


def _from_engine(job: Job, outcome: Outcome, key: str) -> None:
    entry = job.cache.get(key)
    if entry is not None:
        outcome.engine, outcome.folder = entry.record, entry.folder / FORM


def request_of(job: Job, plan: CandidatePlan, original: Original) -> dict[str, Any]:
    """What a worker is told of one candidate."""
    return {
        "spec": job.spec_data,
        "base": str(job.base),
        "cache": str(job.cache.root),
        "machine": dataclasses.asdict(job.machine),
        "quantized": job.quantized,
        "original": original.to_dict(),
        "candidate": plan.name,
        "variant": plan.variant,
        "dump": str(job.options.dump) if job.options.dump else None,
        "verify_each": job.options.verify_each,
    }


def _in_process(job: Job, outcome: Outcome, original: Original, workers: Workers) -> None:
    plan = outcome.plan
    request = request_of(job, plan, original)
    name = plan.name if plan.variant else f"baseline {plan.name}"
    step = "starting"
    with workers.take(name) as worker:
        try:
            worker.request(request)
            for event in worker.events():
                if event["event"] == "doing":
                    step = event["step"]
                    job.listen("step", candidate=plan.name, step=step)
                elif event["event"] == "progress":
                    job.listen("step", candidate=plan.name, step=f"{step}: {event['message']}")
                elif event["event"] == "bar":
                    done, total, note = event["done"], event["total"], f"{step}: {event['note']}"
                    job.listen("bar", candidate=plan.name, done=done, total=total, note=note)
                elif event["event"] == "step":
                    outcome.steps.append(Step.model_validate(event["record"]))
                elif event["event"] == "engine":
                    outcome.lowering = Step.model_validate(event["record"])
                    _from_engine(job, outcome, event["key"])
        except MegacompileError as error:
            outcome.error, outcome.failed_step = error, step
