"""The last form of a candidate into an engine, held to the promise of all its steps."""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path

from megacompile.builder.bisection import find_guilty, find_guilty_step
from megacompile.builder.keys import FORM, SAMPLES
from megacompile.builder.manager import NO_ENTRY, CandidateRun
from megacompile.builder.pass_context import training_origin
from megacompile.errors import VerificationError
from megacompile.measure import (
    Memory,
    StepRun,
    StepVerification,
    Timing,
    enforce,
    record_of,
    run_all,
)
from megacompile.models import Feeds, Form, compare, save_arrays
from megacompile.plan import Lowered, Runner
from megacompile.report import ErrorRecord, Step
from megacompile.system import Entry
from megacompile.training import Training

# An engine may lose this many times what its model had lost, and this much more.
LOWERING_FACTOR, LOWERING_SLACK = 5.0, 0.02


def lower(run: CandidateRun) -> tuple[Step, Entry]:
    """Lower the last form to an engine, run it on all input sets, and store it.

    Raises:
        BackendError, VerificationError: the compiler refused, or the engine answers wrongly.
    """
    backend = run.plan.backend
    run.on_start(backend.name)
    effect, dtype = run.promise(len(run.plan.steps))
    record = Step.model_validate(
        {
            "pass": backend.name,
            "options": backend.model_dump(mode="json", exclude_defaults=True),
            "form": "engine",
            "effect": effect.value,
            "cache_reason": NO_ENTRY,
        }
    )
    step = StepRun(len(run.plan.steps), record, effect, dtype)
    work = Path(tempfile.mkdtemp(prefix="megacompile-engine-"))
    try:
        out = work / FORM
        out.mkdir()
        form = run.form()
        with Memory().around(step), Timing().around(step):
            lowered = backend.compile(form, run.machine, run.plan.facts, out, run.on_progress)
        absent = run.machine.absent()
        if absent is None:
            del form
            run.current = None  # the engine alone is in memory while it is checked
            runner = backend.load(out, run.machine, run.signature)
            samples = _check_engine(run, runner, step, lowered)
        else:
            samples = _check_last_form(run, form, step, lowered, absent)
        if run.spec.train is not None:
            _check_training(run, out, step)
        record.notes += lowered.notes
        record.size_bytes = sum(f.stat().st_size for f in out.rglob("*") if f.is_file())
        described = {
            "step": record.model_dump(mode="json", by_alias=True),
            "precision": lowered.precision,
            "needs_isa": list(lowered.needs_isa),
            "emulated": lowered.emulated,
            "executed": absent is None,
        }

        def write(folder: Path) -> None:
            shutil.copytree(out, folder / FORM)
            save_arrays(folder / SAMPLES, samples)

        return record, run.cache.put(run.keys[-1], described, write)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _check_engine(run: CandidateRun, runner: Runner, step: StepRun, lowered: Lowered) -> Feeds:
    """Enforce the promise of all steps on the engine; returns its answers to the first set."""
    start = time.perf_counter()
    try:
        results = run_all(run.sets, runner.run)
    finally:
        runner.close()
    found = compare(run.sets, results)
    emulated = lowered.emulated and step.dtype == "float16"
    step.record.error = record_of(found, emulated)
    step.record.verification_seconds = round(time.perf_counter() - start, 3)
    try:
        enforce(found, step.effect, step.dtype, step.record.pass_)
    except VerificationError as error:
        guilty = None if run.verify_each else find_guilty(run, step.effect, step.dtype)
        if guilty:
            error.what = f"'{guilty}' broke its promise (found by bisection)"
        raise
    _check_lowering(run.last_error, step)
    return results[0]


def _check_last_form(
    run: CandidateRun, form: Form, step: StepRun, lowered: Lowered, absent: str
) -> Feeds:
    """Where the engine can't run, the model it was built from is held to the promise instead, on
    all input sets; returns its answers to the first."""
    start = time.perf_counter()
    results = run_all(run.sets, form.run)
    found = compare(run.sets, results)
    step.record.error = record_of(found, emulated=step.dtype == "float16")
    step.record.verification_seconds = round(time.perf_counter() - start, 3)
    lowered.notes.append(f"not executed here: {absent}; verified as {form.name} on this CPU")
    enforce(found, step.effect, step.dtype, step.record.pass_)
    return results[0]


def _check_training(run: CandidateRun, out: Path, step: StepRun) -> None:
    """The step that is shipped, over many steps; what breaks it late is found by bisection."""
    origin = training_origin(run.spec, run.base)
    assert origin is not None
    start = time.perf_counter()
    form = Training.load(out, run.signature)
    steps = origin.train.verify_steps
    verification = StepVerification(origin)
    promise = step.effect, step.dtype
    try:
        step.record.training = verification.check(form, steps, *promise, step.record.pass_)
    except VerificationError as error:
        guilty = find_guilty_step(run, verification, steps)
        if guilty:
            error.what = (
                f"'{guilty}' broke its promise about the training step "
                f"(found by bisection over {steps} steps)"
            )
        raise
    step.record.verification_seconds += round(time.perf_counter() - start, 3)


def _check_lowering(before: ErrorRecord | None, step: StepRun) -> None:
    """After a lossy pass the engine may differ from the original, but not much more than the
    model it was made from: that would be the compiler's fault, not the pass's."""
    after = step.record.error
    if before is None or after is None:
        return
    allowed = LOWERING_FACTOR * (1 - before.cosine_min) + LOWERING_SLACK
    if 1 - after.cosine_min > allowed:
        raise VerificationError(
            what=f"'{step.record.pass_}' computes something else than the model it was given",
            expected=f"a cosine to the original of about {before.cosine_min:.4f}, as before it",
            got=f"{after.cosine_min:.4f} ({after.worst})",
            remedy="use another backend for this variant: this is a fault of the compiler",
        )
