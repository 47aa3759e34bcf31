"""Runs a candidate's steps: one after the other, from the cache where it can, never twice."""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

from megacompile.builder.keys import FORM, keys_of
from megacompile.builder.pass_context import ContextMaker
from megacompile.errors import MegacompileError, PassError, VerificationError
from megacompile.measure import Instrument, Original, StepRun
from megacompile.models import Eager, Form, InputSet, load_original
from megacompile.plan import FORMS, CandidatePlan, Effect, Machine, Pass, PlannedStep, Result
from megacompile.report import ErrorRecord, SitesRecord, Skipped, Step
from megacompile.spec import Spec
from megacompile.system import Cache, Entry, hooks
from megacompile.training import Training, check_stored

RUNS = "runs"  # folder of the store for what an interrupted step goes on from
# Why a step was taken from the store, or not.
STORED = "same input, options and versions"
NO_ENTRY = "no entry for this input, options and versions"


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
                record = stored_record(entry)
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
                self.current = self.load_stored(planned.form, entry)
        return self.current

    def load_stored(self, form: str, entry: Entry) -> Form:
        """A form out of the store."""
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
                "cache_reason": NO_ENTRY,
            }
        )
        before = self.form()
        effect, dtype = self.promise(number)
        run = StepRun(number, record, effect, dtype)
        work = Path(tempfile.mkdtemp(prefix="megacompile-step-"))
        try:
            with ExitStack() as stack:
                for instrument in self.instruments:
                    stack.enter_context(_Named(instrument.around(run), pass_.name))
                result = self._call(pass_, before, work, key)
                run.after = result.model
                run.emulated = dtype == "float16" and planned.form == "Onnx"
                self._check_effect(pass_, result, record)
            record.notes += result.notes
            record.recovery = result.recovery
            entry = self._store(key, record, result.model)
            shutil.rmtree(self.cache.root / RUNS / key, ignore_errors=True)
            self.current = result.model
            if entry is not None and planned.form == "Onnx":
                # An ONNX form is its file, and the one in `work` goes away.
                self.current = self.load_stored(planned.form, entry)
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

        described = {"step": record.model_dump(mode="json", by_alias=True)}
        try:
            return self.cache.put(key, described, write)
        except (MegacompileError, OSError):
            raise
        except Exception as error:  # whatever pickling a user's module raises
            if record.form != Eager.name:
                raise
            record.cache_reason = f"not stored: {type(error).__name__}: {error}"
            return None


def stored_record(entry: Entry) -> Step:
    """The record of a step or engine that is taken from the store."""
    described = {**entry.record["step"], "cached": True, "cache_reason": STORED}
    return Step.model_validate(described)


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
