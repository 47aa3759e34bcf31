"""Runs a candidate's plan: step after step, from the cache where it can, never twice."""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

from megacompile.builder.keys import FORM, SAMPLES, keys_of
from megacompile.builder.pass_context import ContextMaker, training_origin
from megacompile.errors import MegacompileError, PassError, VerificationError
from megacompile.measure import (
    Instrument,
    Memory,
    Original,
    StepRun,
    StepVerification,
    Timing,
    enforce,
    first_broken,
    measure_error,
    record_of,
    run_all,
)
from megacompile.models import Eager, Feeds, Form, InputSet, compare, load_original, save_arrays
from megacompile.plan import (
    FORMS,
    CandidatePlan,
    Effect,
    Lowered,
    Machine,
    Pass,
    PlannedStep,
    Result,
    Runner,
)
from megacompile.report import ErrorRecord, SitesRecord, Skipped, Step
from megacompile.spec import Spec
from megacompile.system import Cache, Entry, hooks
from megacompile.training import Training, check_stored

# An engine may lose this many times what its model had lost, and this much more.
LOWERING_FACTOR, LOWERING_SLACK = 5.0, 0.02
RUNS = "runs"  # folder of the store for what an interrupted step goes on from


@dataclasses.dataclass
class CandidateRun:
    """Everything one candidate's steps need; lives in the candidate's own process.

    `verify_each` False looks at the engine alone, and bisects when it is broken.
    """

    plan: CandidatePlan
    spec: Spec
    base: Path
    machine: Machine
    original: Original
    cache: Cache
    instruments: Sequence[Instrument]
    sets: Sequence[InputSet]
    on_start: Callable[[str], None]
    on_step: Callable[[Step], None]
    on_progress: Callable[[str], None]
    on_bar: Callable[[int, int, str], None] = lambda done, total, note: None
    verify_each: bool = True

    def __post_init__(self) -> None:
        self.signature = self.original.signature(self.spec)
        self.keys = keys_of(self.plan, self.spec, self.original, self.machine, self.base)
        self.contexts = ContextMaker(
            self.spec,
            self.base,
            self.machine,
            self.original,
            self.signature,
            self.plan.backend.traits(),
            self.on_progress,
            self.on_bar,
        )
        self.current: Form | None = None
        self.stored: list[tuple[PlannedStep, Entry | None]] = []
        self.last_error: ErrorRecord | None = None

    def run_steps(self) -> list[Step]:
        """Carry out all steps; returns their records. The last form is `self.current`, loaded
        only when something asks for it with `form()`.

        Raises:
            MegacompileError: naming the step that failed.
        """
        records = []
        last = self._last_stored()
        for number, (planned, key) in enumerate(zip(self.plan.steps, self.keys, strict=False)):
            label = planned.pass_.name
            self.on_start(label)
            entry = self.cache.get(key) if number <= last else None
            if entry is not None:
                record = Step.model_validate(
                    {
                        **entry.record["step"],
                        "cached": True,
                        "cache_reason": "same input, options and versions",
                    }
                )
                self.current = None
                self.stored.append((planned, entry))
            else:
                record = self._run_step(number, planned, key)
            records.append(record)
            self.last_error = record.error
            self.on_step(record)
        return records

    def _last_stored(self) -> int:
        """The last step that can be taken from the cache: all before it have a record, and its
        own files are whole. Of those before it only the records are needed."""
        last = -1
        while last + 1 < len(self.plan.steps) and self.cache.get(self.keys[last + 1]):
            last += 1
        while last >= 0 and not self.cache.get(self.keys[last], check=True):
            last -= 1
        return last

    def form(self) -> Form:
        """The model after the last step, read from the cache if it isn't in memory."""
        if self.current is None:
            if not self.stored:
                self.current = load_original(self.spec, self.base, self.signature)
            else:
                planned, entry = self.stored[-1]
                assert entry is not None
                self.current = self._load(planned.form, entry)
        return self.current

    def _load(self, form: str, entry: Entry) -> Form:
        if form == Eager.name and self.spec.model.kind == "python":
            hooks.load(self.spec.model.reference, self.base)  # its classes, for the stored module
        return FORMS[form].load(entry.folder / FORM, self.signature)

    def _run_step(self, number: int, planned: PlannedStep, key: str) -> Step:
        pass_ = planned.pass_
        record = Step.model_validate(
            {
                "pass": pass_.name,
                "options": pass_.model_dump(mode="json", exclude_defaults=True),
                "form": planned.form,
                "effect": pass_.promised().value,
                "inserted": planned.inserted,
                "cache_reason": "no entry for this input, options and versions",
            }
        )
        before = self.form()
        effect, dtype = self.promise(number)
        run = StepRun(number, record, effect, dtype)
        work = Path(tempfile.mkdtemp(prefix="megacompile-step-"))
        try:
            with ExitStack() as stack:
                for instrument in self.instruments:
                    stack.enter_context(_named(instrument.around(run), pass_.name))
                result = self._call(pass_, before, work, key)
                run.after = result.model
                run.emulated = dtype == "float16" and planned.form == "Onnx"
                self._check_effect(pass_, result, record)
            record.notes += result.notes
            record.recovery = result.recovery
            entry = self._store(key, record, result.model)
            shutil.rmtree(self.cache.root / RUNS / key, ignore_errors=True)
            self.current = (
                self._load(planned.form, entry)
                if entry and planned.form == "Onnx"
                else result.model
            )
            self.stored.append((planned, entry))
        finally:
            shutil.rmtree(work, ignore_errors=True)
        return record

    def promise(self, number: int) -> tuple[Effect, str]:
        """The weakest promise of the steps up to one, and the dtype it rounds to."""
        passes = [step.pass_ for step in self.plan.steps[: number + 1]]
        effect = max((p.promised() for p in passes), key=lambda e: e.rank, default=Effect.EXACT)
        dtype = next((str(p.dtype) for p in passes if hasattr(p, "dtype")), "float32")
        return effect, dtype

    def _call(self, pass_: Pass[Any, Any], before: Form, work: Path, key: str) -> Result[Any]:
        context = self.contexts.context(work, self.cache.root / RUNS / key)
        try:
            result = pass_.run(before, context)
        except MegacompileError:
            raise
        except Exception as error:
            raise hooks.fault_of(
                error, PassError, f"pass '{pass_.name}' raises", audience="pass author"
            ) from error
        if not isinstance(result, Result) or not isinstance(result.model, Form):
            raise PassError(
                what=f"pass '{pass_.name}' returns no Result with a form",
                expected="Result(model, Sites(...))",
                got=type(result).__name__,
                audience="pass author",
            )
        if isinstance(before, Training) and isinstance(result.model, Training):
            check_stored(pass_.name, before.module, result.model.module)
        return result

    def _check_effect(self, pass_: Pass[Any, Any], result: Result[Any], record: Step) -> None:
        sites = result.sites
        record.sites = SitesRecord(
            kind=sites.kind,
            matched=sites.matched,
            changed=sites.changed,
            skipped=[Skipped(site=site, reason=reason) for site, reason in sites.skipped],
        )
        if sites.changed or pass_.cleanup:
            return
        reasons = sorted({reason for _, reason in sites.skipped})
        raise PassError(
            what=f"'{pass_.name}' changed 0 of {sites.matched} {sites.kind}s",
            cause="; ".join(reasons[:3]) or f"the model has no {sites.kind} for it",
            remedy=f"leave '{pass_.name}' out of this variant",
        )

    def _store(self, key: str, record: Step, model: Form) -> Entry | None:
        def write(folder: Path) -> None:
            (folder / FORM).mkdir()
            model.save(folder / FORM)

        try:
            return self.cache.put(
                key, {"step": record.model_dump(mode="json", by_alias=True)}, write
            )
        except (MegacompileError, OSError):
            raise
        except Exception as error:  # whatever pickling a user's module raises
            if record.form != Eager.name:
                raise
            record.cache_reason = f"not stored: {type(error).__name__}: {error}"
            return None

    def find_guilty(self, effect: Effect, dtype: str) -> str | None:
        """After a broken engine whose steps weren't looked at: the first broken step's name."""
        known = [(planned, entry) for planned, entry in self.stored if entry is not None]

        def broken(item: tuple[PlannedStep, Entry]) -> bool:
            found = measure_error(self.sets, self._load(item[0].form, item[1]).run)
            return found.broken(effect.tolerance(dtype)) is not None

        guilty = first_broken(known, broken)
        return guilty[0].pass_.name if guilty else None

    def find_guilty_step(self, verification: StepVerification, steps: int) -> str | None:
        """The first stored training step that breaks its promise over many steps."""
        from megacompile.measure.training.comparison import broken_step

        known = [
            (number, planned, entry)
            for number, (planned, entry) in enumerate(self.stored)
            if entry is not None and planned.form == Training.name
        ]

        def broken(item: tuple[int, PlannedStep, Entry]) -> bool:
            form = self._load(Training.name, item[2])
            assert isinstance(form, Training)
            return (
                broken_step(verification.measure(form, steps), *self.promise(item[0])) is not None
            )

        guilty = first_broken(known, broken)
        return guilty[1].pass_.name if guilty else None


def _named(context: AbstractContextManager[None], step: str) -> AbstractContextManager[None]:
    return _Named(context, step)


class _Named(AbstractContextManager[None]):
    """An instrument's error says which step it was found after."""

    def __init__(self, context: AbstractContextManager[None], step: str) -> None:
        self.context, self.step = context, step

    def __enter__(self) -> None:
        self.context.__enter__()

    def __exit__(self, *exc: Any) -> bool | None:
        try:
            return self.context.__exit__(*exc)
        except VerificationError as error:
            error.where = error.where or f"after pass '{self.step}'"
            raise


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
            "cache_reason": "no entry for this input, options and versions",
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
        guilty = None if run.verify_each else run.find_guilty(step.effect, step.dtype)
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
    try:
        step.record.training = verification.check(
            form, steps, step.effect, step.dtype, step.record.pass_
        )
    except VerificationError as error:
        guilty = run.find_guilty_step(verification, steps)
        if guilty:
            error.what = f"'{guilty}' broke its promise about the training step (found by bisection"
            error.what += f" over {steps} steps)"
        raise
    step.record.verification_seconds += round(time.perf_counter() - start, 3)


def _check_lowering(before: ErrorRecord | None, step: StepRun) -> None:
    """After a lossy pass the engine may differ from the original, but not much more than the
    model it was made from: that would be the compiler's fault, not the pass's."""
    after = step.record.error
    if before is None or after is None:
        return
    lost, allowed = 1 - after.cosine_min, LOWERING_FACTOR * (1 - before.cosine_min) + LOWERING_SLACK
    if lost > allowed:
        raise VerificationError(
            what=f"'{step.record.pass_}' computes something else than the model it was given",
            expected=f"a cosine to the original of about {before.cosine_min:.4f}, as before it",
            got=f"{after.cosine_min:.4f} ({after.worst})",
            remedy="use another backend for this variant: this is a fault of the compiler",
        )
