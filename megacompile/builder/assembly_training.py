"""Step 4 of a training build: figures of steps into a report."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from megacompile.builder import judge
from megacompile.builder.assembly import report_of, state_of
from megacompile.builder.job import Job, Outcome
from megacompile.builder.judge_training import choose_training, gates_of_training, point_of
from megacompile.builder.measuring_training import MB, PLAIN, Trained
from megacompile.measure import AGAIN, AAResult, Original, aa_check, percentiles
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
from megacompile.training import Recipe, read_record


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
            first, second = plain.measured.times[0], again.times[0]
            check = aa_check(first.block_medians_ms, second.block_medians_ms)
        baselines = [_baseline(job, plain, check)]
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


def _baseline(job: Job, plain: Trained, check: AAResult | None) -> Baseline:
    point = point_of(job.spec, plain.measured, _step_of(job, plain), None, check)
    return Baseline(name=PLAIN, precision="float32", points=[point], metric=_metric(plain))


def _fill(
    job: Job,
    candidate: Candidate,
    outcome: Outcome,
    plain: Trained,
    mine: Trained,
    check: AAResult | None,
) -> None:
    """What a candidate's step was measured at, and whether that is inside the budget."""
    assert outcome.folder is not None
    assert outcome.lowering is not None
    assert outcome.lowering.training is not None
    before, after = _step_of(job, plain), _step_of(job, mine)
    recipe = Recipe.model_validate(read_record(Path(outcome.folder))["recipe"])
    limit = before.peak_memory_mb
    largest = None
    if plain.largest is not None and mine.largest is not None:
        largest = LargestBatch(plain=plain.largest, optimised=mine.largest, limit_mb=limit)
    ratio = None
    if check is None or check.passed:
        ratio = judge.ratio_of(mine.measured.times[0], plain.measured.times[0])
    compiled = mine.figures.get("compile")
    record = TrainingRecord(
        plain=before,
        optimised=after,
        step_time_ratio=ratio,
        memory_ratio=after.peak_memory_mb / limit,
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
        step_ms=Latency(**asdict(taken)),
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
    measured = {cost.block for cost in recipe.costs}
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
        if name not in measured
    ]


def _distribute(
    recipe: Recipe, figures: dict[str, Any], plain: StepFigures
) -> DistributeRecord | None:
    choice = recipe.distribute
    if choice is None:
        return None
    held = ("parameters", "gradients", "optimizer")
    return DistributeRecord(
        strategy=choice.strategy,
        processes=choice.processes,
        reckoning_mb={name: size / MB for name, size in choice.reckoning.items()},
        state_mb_by_rank=figures.get("state_mb_by_rank", []),
        state_mb_of_one=sum(plain.state_mb.get(part, 0.0) for part in held),
    )
