"""Step 4: figures into a report. What they mean is decided in `judge`."""

from __future__ import annotations

import datetime
import shlex
import subprocess
import sys
import time
from pathlib import Path

from megacompile.builder import judge
from megacompile.builder.ceiling import ceiling_of
from megacompile.builder.job import Job, Outcome
from megacompile.builder.measuring import metrics_of
from megacompile.errors import MegacompileError
from megacompile.measure import AAResult, Measured, Original
from megacompile.report import (
    Baseline,
    BuildTime,
    Candidate,
    Ceiling,
    Metric,
    Provenance,
    Report,
    Source,
    Verdict,
)
from megacompile.spec import batch_of
from megacompile.system import file_sha256, key_of


def assemble(
    job: Job,
    original: Original,
    metric: dict[str, Metric],
    outcomes: list[Outcome],
    lowered: list[Outcome],
    measured: dict[str, Measured],
) -> Report:
    """The whole report but for `build_seconds`. The first baseline carries the original's metric:
    it is the same model."""
    points = job.spec.points()
    batch = [batch_of(job.spec.tensors(), point) for point in points]
    first = next((measured[n] for n in job.plan.baselines if n in measured), None)
    race = judge.Race.of(points, batch, first, measured)
    baselines = []
    for name in job.plan.baselines:
        plain = next((o for o in lowered if o.plan.backend.name == name), None)
        baselines.append(_baseline(job, name, plain, measured.get(name)))
        judge.judge_baseline(race, baselines[-1], measured.get(name))
    baselines[0].metric = metric
    candidates = [state_of(o, measured.get(o.plan.name)) for o in outcomes]
    best = judge.best_baseline(baselines)
    rival = measured[best.name] if best else None
    for candidate in candidates:
        mine = measured.get(candidate.name)
        judge.judge_candidate(race, job.spec.budget, candidate, mine, rival, metric)
    check = race.check
    verdict, winner, sentence = judge.choose(candidates, baselines, check)
    chosen = next((c for c in candidates if c.name == winner), None)
    report = report_of(job, original, check, baselines, candidates, verdict, winner, sentence)
    if first is not None and job.machine.device == "cpu":
        report.ceiling = _ceiling(job, original, chosen)
    return report


def report_of(
    job: Job,
    original: Original,
    check: AAResult | None,
    baselines: list[Baseline],
    candidates: list[Candidate],
    verdict: Verdict,
    winner: str | None,
    sentence: str,
) -> Report:
    """A report with everything that both workloads have; `recovery` is the winner's, or the first
    candidate's that was recovered."""
    recovered = [c for c in candidates if c.recovery is not None]
    shown = next((c for c in recovered if c.name == winner), next(iter(recovered), None))
    return Report(
        name=job.spec.name,
        verdict=verdict,
        winner=winner,
        sentence=sentence,
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        warnings=_warnings(job, original, check),
        environment=job.environment,
        source=Source(
            form=original.form,
            reference=original.reference,
            fingerprint=original.fingerprint,
            parameters=original.parameters,
            size_bytes=original.size_bytes,
            dims=job.spec.points()[0],
            operations=job.needs.get("operations"),
            bytes_moved=job.needs.get("bytes_moved"),
        ),
        spec=job.spec_data,
        baselines=baselines,
        candidates=candidates,
        recovery=shown.recovery if shown else None,
        aa_check=judge.aa_record(check),
        provenance=_provenance(job),
    )


def _ceiling(job: Job, original: Original, winner: Candidate | None) -> Ceiling:
    with job.clock.part("measuring"):
        return ceiling_of(job.needs, winner, job.machine, job.cache, job.say)


def state_of(outcome: Outcome, measured: Measured | None) -> Candidate:
    """A candidate's steps, files and status; what it was measured at comes later."""
    plan = outcome.plan
    found = Candidate(
        name=plan.name,
        variant=plan.variant,
        backend=plan.backend.name,
        status="built",
        steps=outcome.steps,
        lowering=outcome.lowering,
    )
    error = outcome.error or (measured.error if measured else None)
    if plan.unavailable:
        found.status, found.reason, found.remedy = "unavailable", plan.unavailable, plan.remedy
    elif error is not None:
        found.status, found.reason, found.remedy = "failed", _reason(error), error.remedy
        found.failed_step = outcome.failed_step or "measuring"
    if outcome.engine is not None and outcome.folder is not None:
        found.precision, found.executed = outcome.engine["precision"], outcome.engine["executed"]
        if outcome.engine["emulated"]:
            found.notes.append(f"{found.precision} is emulated on this CPU")
        files = [f for f in outcome.folder.rglob("*") if f.is_file()]
        found.files = {str(f.relative_to(outcome.folder)): f.stat().st_size for f in files}
        found.size_bytes = sum(found.files.values())
    recovered = [s.recovery for s in outcome.steps if s.recovery is not None]
    found.recovery = recovered[-1] if recovered else None
    known = [s.parameters for s in outcome.steps if s.parameters is not None]
    found.parameters = known[-1] if known else None
    if measured is not None and found.status == "built":
        # What was loaded in place of an engine for other hardware tells nothing of its time.
        found.load_seconds = measured.loaded.get("load_seconds") if found.executed else None
        found.metric = metrics_of(measured)
    return found


def _warnings(job: Job, original: Original, check: AAResult | None) -> list[str]:
    found = list(original.notes)
    if job.needs.get("note"):
        found.append(str(job.needs["note"]))
    if check is not None and not check.passed:
        found.append(f"speed-ups are withheld: {check.note}")
    load = job.environment.load_average
    if load is not None and load > 0.5 * job.environment.cores:
        found.append(f"the machine was busy when the build began (load average {load:.1f})")
    return found


def _provenance(job: Job) -> Provenance:
    spec, path = job.spec, job.loaded.document.name
    hooks = [spec.model.python]
    if spec.train is not None:
        hooks += [spec.train.loss, spec.train.batches]
    hooks += [one.python for one in (spec.data.calibration, spec.data.evaluation) if one]
    files = {}
    for hook in hooks:
        if hook and hook.partition(":")[0].endswith(".py"):
            name = hook.rpartition(":")[0]
            files[name] = file_sha256(job.base / name)
    spec_file = Path(path)
    spec_hash = file_sha256(spec_file) if spec_file.is_file() else key_of(job.spec_data)
    return Provenance(
        command=_command(),
        spec_path=path,
        spec_sha256=spec_hash,
        files=files,
        commit=_commit(job.base),
        seed=spec.seed,
    )


def build_time(job: Job, outcomes: list[Outcome]) -> BuildTime:
    """Where the build's seconds went; what came from the cache took none."""
    fresh = [s for o in outcomes for s in o.steps if not s.cached]
    engines = [o.lowering for o in outcomes if o.lowering and not o.lowering.cached]
    total = time.perf_counter() - job.clock.start
    passes = sum(s.seconds for s in fresh)
    lowering = sum(s.seconds for s in engines)
    verification = sum(s.verification_seconds for s in [*fresh, *engines])
    hooks = job.clock.evaluation + job.clock.hooks
    own = total - passes - lowering - job.clock.measuring - hooks
    return BuildTime(
        total=total,
        passes=passes,
        lowering=lowering,
        verification=verification,
        measuring=job.clock.measuring,
        evaluation=hooks,
        own=own,
    )


def _baseline(job: Job, name: str, plain: Outcome | None, measured: Measured | None) -> Baseline:
    found = Baseline(name=name, precision="float32")
    error = (plain.error if plain else None) or (measured.error if measured else None)
    if plain is not None and plain.plan.unavailable:
        found.status, found.reason = "unavailable", plain.plan.unavailable
    elif error is not None:
        found.status, found.reason = "failed", _reason(error)
    elif plain is None and measured is None:
        found.status, found.reason = "unavailable", job.machine.absent()
    if plain is not None and plain.engine is not None and plain.lowering is not None:
        found.precision, found.executed = plain.engine["precision"], plain.engine["executed"]
        found.size_bytes = plain.lowering.size_bytes
    if measured is not None:
        found.load_seconds = measured.loaded.get("load_seconds")
        found.metric = metrics_of(measured)
    return found


def _reason(error: MegacompileError) -> str:
    said = {"expected": error.expected, "got": error.got, "because": error.cause}
    parts = [f"{error.where}: {error.what}" if error.where else error.what]
    parts += [f"{label} {text}" for label, text in said.items() if text]
    return "; ".join(parts)


def _command() -> str:
    return shlex.join(["megacompile", *sys.argv[1:]])


def _commit(folder: Path) -> str | None:
    """The commit the spec's folder stands at, marked when files differ from it."""

    def git(*arguments: str) -> str | None:
        command = ["git", "-C", str(folder), *arguments]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    commit = git("rev-parse", "HEAD")
    return f"{commit} (changed)" if commit and git("status", "--porcelain", "-uno") else commit
