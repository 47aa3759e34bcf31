"""Step 3 of a training build: the plain step and all that were built, measured."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

from megacompile.builder.job import Job, Outcome
from megacompile.builder.keys import keys_of
from megacompile.measure import AGAIN, Contestant, Measured, Original, Session
from megacompile.system import key_of

WORKER = "megacompile.measure.trainer:serve"
PLAIN = "plain"
MB = 1e6


@dataclasses.dataclass
class Trained:
    """What was measured of one step besides its times."""

    measured: Measured
    figures: dict[str, Any] = dataclasses.field(default_factory=dict)
    curve: dict[str, Any] = dataclasses.field(default_factory=dict)
    largest: int | None = None


def measure_training(
    job: Job, original: Original, outcomes: list[Outcome], remembered: bool
) -> tuple[dict[str, Trained], bool]:
    """Race the plain step and everything that was built, then measure memory, the largest batch
    and the loss curves. The second result says that the model is not the recorded one any more."""
    built = [o for o in outcomes if o.folder is not None]
    if not built:
        return {}, False
    start = time.perf_counter()
    common = {
        "spec": job.spec_data,
        "base": str(job.base),
        "machine": dataclasses.asdict(job.machine),
        "original": original.to_dict(),
    }
    contestants = [Contestant(PLAIN, PLAIN, confirm=True), Contestant(PLAIN + AGAIN, PLAIN)]
    for outcome in built:
        plan = outcome.plan
        contestants.append(Contestant(plan.name, plan.backend.name, folder=str(outcome.folder)))
    with Session(common, job.logs / "measure", job.machine.threads, job.say, WORKER) as session:
        for contestant in contestants:
            loaded = session.load(contestant).loaded
            known = loaded.get("fingerprint", original.fingerprint)
            if remembered and known != original.fingerprint:
                return {}, True
        session.race({}, job.spec.benchmark.seconds, job.spec.seed)
        found = {name: Trained(one) for name, one in session.measured.items()}
        names = [name for name in found if name != PLAIN + AGAIN]
        for name in names:
            job.say(f"measuring the memory of {name}")
            found[name].figures = session.ask(name, {"operation": "figures"}, lambda event: None)
        _curves(job, original, session, found, built)
        _largest(job, session, found, names)
    job.clock.measuring += time.perf_counter() - start
    error = found[PLAIN].measured.error
    if error is not None:
        raise error  # without the plain step there is nothing to compare with
    return found, False


def _largest(job: Job, session: Session, found: dict[str, Trained], names: list[str]) -> None:
    limit = found[PLAIN].figures.get("peak_memory_mb", 0.0) * MB
    request = {"operation": "largest", "limit_bytes": limit}
    for name in names:
        if not limit or found[name].measured.error is not None:
            continue
        job.say(f"searching the largest batch of {name} in {limit / MB:.0f} MB")
        found[name].largest = session.ask(name, request, lambda event: None).get("largest")


def _curves(
    job: Job,
    original: Original,
    session: Session,
    found: dict[str, Trained],
    built: list[Outcome],
) -> None:
    keys: dict[str, str] = {}
    for outcome in built:
        plan = outcome.plan
        keys[plan.name] = keys_of(plan, job.spec, original, job.machine, job.base)[-1]
    keys[PLAIN] = key_of("plain", original.fingerprint, original.training_hash, job.spec.seed)
    for name, key in keys.items():
        cached = key_of("curve", key)
        entry = job.cache.get(cached)
        if entry is not None:
            found[name].curve = entry.record
            continue

        def listen(event: dict[str, Any], name: str = name) -> None:
            if event.get("event") == "progress":
                job.listen(
                    "bar",
                    candidate=f"training {name}",
                    done=event["done"],
                    total=event["total"],
                    note=event["message"],
                )

        folder = job.cache.root / "runs" / cached
        request = {"operation": "curve", "key": key, "folder": str(folder)}
        answer = session.ask(name, request, listen)
        if not answer:
            continue
        if answer.get("note"):
            job.say(f"training {name}: {answer['note']}")
        found[name].curve = {k: v for k, v in answer.items() if k != "event"}
        job.cache.put(cached, found[name].curve, lambda folder: None)
