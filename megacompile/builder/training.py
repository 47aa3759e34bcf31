"""Steps 3 and 4 of a training build: plain and optimised steps measured, figures into a report."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any

from megacompile.builder import judge
from megacompile.builder.assembly import report_of, state_of
from megacompile.builder.job import Job, Outcome
from megacompile.builder.judge_training import choose_training, gates_of_training, point_of
from megacompile.builder.keys import keys_of
from megacompile.measure import (
    AGAIN,
    Contestant,
    Measured,
    Original,
    Session,
    aa_check,
    percentiles,
)
from megacompile.report import (
    WAITING,
    Baseline,
    Candidate,
    CheckpointRecord,
    CompileRecord,
    DistributeRecord,
    LargestBatch,
    Latency,
    Metric,
    Operator,
    Report,
    StepFigures,
    TrainingRecord,
)
from megacompile.system import key_of
from megacompile.training import Recipe, read_record

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
    contestants += [
        Contestant(o.plan.name, o.plan.backend.name, folder=str(o.folder)) for o in built
    ]
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
    for name in names:
        if not limit or found[name].measured.error is not None:
            continue
        job.say(f"searching the largest batch of {name} in {limit / MB:.0f} MB")
        answer = session.ask(
            name, {"operation": "largest", "limit_bytes": limit}, lambda event: None
        )
        found[name].largest = answer.get("largest")


def _curves(
    job: Job,
    original: Original,
    session: Session,
    found: dict[str, Trained],
    built: list[Outcome],
) -> None:
    keys = {
        o.plan.name: keys_of(o.plan, job.spec, original, job.machine, job.base)[-1] for o in built
    }
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

        request = {
            "operation": "curve",
            "key": key,
            "folder": str(job.cache.root / "runs" / cached),
        }
        answer = session.ask(name, request, listen)
        if not answer:
            continue
        if answer.get("note"):
            job.say(f"training {name}: {answer['note']}")
        found[name].curve = {k: v for k, v in answer.items() if k != "event"}
        job.cache.put(cached, found[name].curve, lambda folder: None)


def assemble_training(
    job: Job, original: Original, outcomes: list[Outcome], found: dict[str, Trained]
) -> Report:
    """The report of a training build but for `build_seconds`."""
    plain = found.get(PLAIN)
    check = None
    baselines: list[Baseline] = []
    if plain is not None:
        again = found[PLAIN + AGAIN].measured
        if plain.measured.times and again.times:
            check = aa_check(
                plain.measured.times[0].block_medians_ms, again.times[0].block_medians_ms
            )
        baselines = [
            Baseline(
                name=PLAIN,
                precision="float32",
                points=[point_of(job.spec, plain.measured, _step_of(job, plain), None, check)],
                metric=_metric(plain),
            )
        ]
    candidates = []
    for outcome in outcomes:
        mine = found.get(outcome.plan.name)
        candidate = state_of(outcome, mine.measured if mine else None)
        if plain is not None and mine is not None and candidate.status == "built":
            _fill(job, candidate, outcome, plain, mine, check)
        candidates.append(candidate)
    verdict, winner, sentence = choose_training(candidates, job.spec.budget, check)
    chosen = next((c for c in candidates if c.name == winner), None)
    chosen = chosen or next((c for c in candidates if c.training is not None), None)
    report = report_of(job, original, check, baselines, candidates, verdict, winner, sentence)
    report.training = chosen.training if chosen else None
    return report


def _fill(
    job: Job, candidate: Candidate, outcome: Outcome, plain: Trained, mine: Trained, check: Any
) -> None:
    assert outcome.folder is not None
    assert outcome.lowering is not None
    assert outcome.lowering.training is not None
    before, after = _step_of(job, plain), _step_of(job, mine)
    recipe = Recipe.model_validate(read_record(Path(outcome.folder))["recipe"])
    largest = None
    if plain.largest is not None and mine.largest is not None:
        largest = LargestBatch(
            plain=plain.largest, optimised=mine.largest, limit_mb=before.peak_memory_mb
        )
    trusted = check is None or check.passed
    times = plain.measured.times[0], mine.measured.times[0]
    compiled = mine.figures.get("compile")
    record = TrainingRecord(
        plain=before,
        optimised=after,
        step_time_ratio=judge.ratio_of(times[1], times[0]) if trusted else None,
        memory_ratio=after.peak_memory_mb / before.peak_memory_mb,
        activation_ratio=after.peak_activation_mb / before.peak_activation_mb,
        gradient=outcome.lowering.training,
        largest_batch=largest,
        checkpoints=_checkpoints(recipe),
        compile=CompileRecord(**compiled) if compiled else None,
        distribute=_distribute(recipe, mine.figures, before),
        recipe=recipe.model_dump(mode="json", exclude_defaults=True, exclude={"costs"}),
        waiting_remedy=mine.curve.get("remedy") if (after.waiting or 0.0) > WAITING else None,
        notes=[mine.curve["note"]] if mine.curve.get("note") else [],
    )
    candidate.training = record
    candidate.metric = _metric(mine)
    candidate.points = [point_of(job.spec, mine.measured, after, plain.measured, check)]
    candidate.gates = gates_of_training(job.spec.budget, record, candidate, _metric(plain))
    failed = [gate.name for gate in candidate.gates if not gate.passed]
    if failed:
        candidate.status = "outside_budget"
        candidate.reason = "outside the budget in " + ", ".join(failed)


def _metric(one: Trained) -> dict[str, Metric]:
    """The user's metric after the measured run."""
    return {name: Metric(**value) for name, value in one.curve.get("metrics", {}).items()}


def _step_of(job: Job, one: Trained) -> StepFigures:
    train = job.spec.train
    assert train is not None
    taken = percentiles(one.measured.times[0].latencies_ms)
    per_second = 1000 * train.batch_size / taken.p50
    known = one.figures
    tokens = 1000 * known["tokens"] / taken.p50 if "tokens" in known else None
    memory = one.measured.memory[0] if one.measured.memory else None
    return StepFigures(
        step_ms=Latency(
            p50=taken.p50, p95=taken.p95, p99=taken.p99, mean=taken.mean, count=taken.count
        ),
        peak_activation_mb=known.get("peak_activation_mb", 0.0),
        peak_memory_mb=known.get("peak_memory_mb", 0.0),
        resident_mb=memory,
        state_mb=known.get("state_mb", {}),
        saved_mb=known.get("saved_mb", {}),
        samples_per_second=per_second,
        tokens_per_second=tokens,
        waiting=one.curve.get("waiting"),
        waiting_ms=one.curve.get("waiting_ms"),
        data_start_ms=one.curve.get("data_start_ms"),
        skipped=one.curve.get("skipped", 0),
        timeline=known.get("timeline", []),
        losses=one.curve.get("losses", []),
        operators=[Operator(**row) for row in known.get("operators", [])],
    )


def _checkpoints(recipe: Recipe) -> list[CheckpointRecord]:
    policies = {one.module: one.policy for one in recipe.checkpoints}
    found = [
        CheckpointRecord(
            block=cost.block,
            saved_mb=cost.saved_bytes / MB,
            recompute_ms=cost.recompute_ms,
            chosen=cost.chosen,
            policy=policies.get(cost.block),
            why=cost.why,
        )
        for cost in recipe.costs
    ]
    known = {cost.block for cost in recipe.costs}
    return found + [
        CheckpointRecord(
            block=name,
            saved_mb=0.0,
            recompute_ms=0.0,
            chosen=True,
            policy=policy,
            why="named in the spec; not measured",
        )
        for name, policy in policies.items()
        if name not in known
    ]


def _distribute(
    recipe: Recipe, figures: dict[str, Any], plain: StepFigures
) -> DistributeRecord | None:
    choice = recipe.distribute
    if choice is None:
        return None
    return DistributeRecord(
        strategy=choice.strategy,
        processes=choice.processes,
        reckoning_mb={name: size / MB for name, size in choice.reckoning.items()},
        state_mb_by_rank=figures.get("state_mb_by_rank", []),
        state_mb_of_one=sum(
            plain.state_mb.get(part, 0.0) for part in ("parameters", "gradients", "optimizer")
        ),
    )
