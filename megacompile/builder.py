"""The main job, as named steps that read top to bottom."""

from __future__ import annotations

import dataclasses
import datetime
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from megacompile import judge
from megacompile.backendbase import Machine
from megacompile.bundle import Contents, write_bundle
from megacompile.cache import Cache, default_root, file_sha256, key_of, sources_hash
from megacompile.ceiling import ceiling_of
from megacompile.errors import DataError, MegacompileError
from megacompile.keys import FORM, SAMPLES, keys_of, own_hash, versions
from megacompile.lock import output_lock
from megacompile.measure.machine import cpu_isa, environment, thread_budget, thread_environment
from megacompile.measure.session import AGAIN, Contestant, Measured, Session
from megacompile.measure.statistics import AAResult, aa_check
from megacompile.original import Original, read_record, source_path
from megacompile.plan import EAGER_BASELINES, CandidatePlan, Plan, make_plan
from megacompile.process import Worker
from megacompile.progress import Listener, Progress
from megacompile.report.model import (
    AACheck,
    Baseline,
    BuildTime,
    Candidate,
    Metric,
    Provenance,
    Report,
    Source,
    Step,
)
from megacompile.report.store import write_report
from megacompile.spec.load import Loaded, load_spec, load_spec_data
from megacompile.spec.models import Spec

EXIT_CODES = {"improved": 0, "no_improvement": 3, "outside_budget": 3, "failed": 4}


@dataclass(frozen=True)
class Options:
    """How to build; everything about what to build stands in the spec."""

    build_dir: Path = Path("build")
    report_dir: Path | None = None
    cache_dir: Path | None = None
    resume: bool = True
    dump: Path | None = None
    verify_each: bool = True
    quantized: bool = False


@dataclass
class Outcome:
    """What one candidate's process came to."""

    plan: CandidatePlan
    steps: list[Step] = field(default_factory=list)
    lowering: Step | None = None
    engine: dict[str, Any] | None = None
    folder: Path | None = None
    error: MegacompileError | None = None
    failed_step: str | None = None


@dataclass
class Clock:
    """Wall time by part of the build, in seconds."""

    start: float = field(default_factory=time.perf_counter)
    measuring: float = 0.0
    evaluation: float = 0.0
    inspection: float = 0.0

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            setattr(self, name, getattr(self, name) + time.perf_counter() - start)


@dataclass
class Result:
    """A finished build. `exit_code` is the command's; `bundle` is None without a winner."""

    report: Report
    report_path: Path
    bundle: Path | None
    exit_code: int


def build(
    spec: Path | str | Spec, options: Options = Options(), listen: Listener | None = None,
    base: Path | None = None,
) -> Result:  # fmt: skip
    """Build a spec file, or a `Spec` object whose relative paths start from `base`.

    Raises:
        MegacompileError: bad input of any kind, before anything heavy has run where possible.
    """
    say = listen or Progress("quiet")
    loaded = _read(spec, base)
    plan = make_plan(loaded, resolve_target, quantized_source(loaded))
    with output_lock(options.build_dir, plan.spec.name):
        work = _Build(loaded, plan, options, say)
        try:
            return work.run()
        finally:
            if not options.resume:
                shutil.rmtree(work.cache.root, ignore_errors=True)


def _read(spec: Path | str | Spec, base: Path | None) -> Loaded:
    if isinstance(spec, Spec):
        data = spec.model_dump(mode="json", by_alias=True, exclude_unset=True)
        return load_spec_data(data, base or Path.cwd(), spec.name)
    return load_spec(Path(spec))


def resolve_target(spec: Spec) -> Machine:
    """Threads from this process's affinity and cgroup, instruction sets from this CPU.

    Raises:
        SpecError: the target asks for what this machine can't check.
    """
    from megacompile.errors import SpecError, did_you_mean

    if spec.target.device == "cuda":
        raise SpecError(what="device 'cuda' can't be built for yet", where="target.device",
                        expected="cpu", got="cuda")  # fmt: skip
    here = cpu_isa()
    for name in spec.target.isa or []:
        if name not in here:
            raise SpecError(what=f"this CPU has no '{name}', so nothing could be checked here",
                            where="target.isa", expected=", ".join(here) or "none",
                            remedy=did_you_mean(name, here) or "build on the target machine",
                            )  # fmt: skip
    isa = tuple(here if spec.target.isa is None else spec.target.isa)
    threads = thread_budget() if spec.target.threads == "auto" else spec.target.threads
    return Machine("cpu", threads, isa)


def quantized_source(loaded: Loaded) -> bool:
    """Whether an ONNX source holds Q/DQ nodes; their operator name stands in the file as text."""
    spec = loaded.spec
    if spec is None or spec.model.kind != "onnx":
        return False
    path = source_path(spec, loaded.base)
    assert path is not None
    return b"DequantizeLinear" in path.read_bytes()


class _Build:
    def __init__(self, loaded: Loaded, plan: Plan, options: Options, say: Listener) -> None:
        self.loaded, self.plan, self.options, self.listen = loaded, plan, options, say
        self.spec, self.machine, self.base = plan.spec, plan.target, loaded.base
        self.cache = Cache(options.cache_dir or default_root())
        if not options.resume:
            self.cache = Cache(Path(tempfile.mkdtemp(prefix="megacompile-fresh-")))
        self.logs = options.build_dir / ".logs" / self.spec.name
        self.clock = Clock()
        self.spec_data: dict[str, Any] = self.spec.model_dump(mode="json", by_alias=True,
                                                              exclude_unset=True)  # fmt: skip
        self.quantized = quantized_source(loaded)
        self.environment = environment(self.machine.threads)

    def say(self, message: str) -> None:
        self.listen("say", message=message)

    def run(self) -> Result:
        """Inspect, build, measure, judge, write. Started again, it goes on where it was."""
        self.cache.remove_leftovers()
        original, remembered = self.inspect_original()
        outcomes = [self.build_candidate(c, original) for c in self.plan.candidates]
        lowered = [self.build_candidate(c, original) for c in self.plan.lowered_baselines]
        measured, stale = self.measure(original, outcomes, lowered, remembered)
        if stale:
            self.say("the model has changed since it was recorded: starting over")
            self.forget_original()
            return self.run()
        report = self.judge(original, outcomes, lowered, measured)
        bundle = self.write_winner(report, outcomes, original)
        if self.clock.start:
            report.build_seconds = self._build_time(outcomes + lowered)
        folder = self.options.report_dir or Path("reports") / self.spec.name
        path = write_report(report, folder)
        return Result(report, path, bundle, self._exit_code(report, outcomes))

    # 1. The original model, looked at in a process of its own.

    def original_key(self) -> str:
        """What the original depends on, as far as can be told without loading it. Whether it is
        still the same model is confirmed by the worker that loads it as a baseline."""
        path = source_path(self.spec, self.base)
        source: Any = None
        if path is not None:
            source = sources_hash(path) if path.suffix == ".py" else file_sha256(path)
        hooks = [h.python for h in (self.spec.data.calibration,) if h is not None]
        described = {k: self.spec_data.get(k) for k in
                     ("model", "dims", "inputs", "outputs", "data", "benchmark", "seed")}  # fmt: skip
        return key_of("inspection", own_hash(), str(self.base), source, hooks, described,
                      versions(["torch", "onnx", "onnxruntime"]))  # fmt: skip

    def inspect_original(self) -> tuple[Original, bool]:
        key = self.original_key()
        entry = self.cache.get(key)
        if entry is not None:
            self.say("the original model is known: its record is used")
            return read_record(entry.folder), True
        self.say("looking at the original model")
        request = {"spec": self.spec_data, "base": str(self.base), "key": key,
                   "cache": str(self.cache.root)}  # fmt: skip
        with self.clock.part("inspection"), self._worker("the original model", "inspection") as w:
            done = w.ask(request)
        original = read_record(Path(done["folder"]))
        for note in original.notes:
            self.say(note)
        return original, False

    def forget_original(self) -> None:
        shutil.rmtree(self.cache.folder(self.original_key()), ignore_errors=True)

    def _worker(self, name: str, kind: str) -> Worker:
        function = {"inspection": "megacompile.candidate:serve_inspection",
                    "candidate": "megacompile.candidate:serve"}[kind]  # fmt: skip
        log = self.logs / (name.replace("/", "-").replace(" ", "-") + ".log")
        log.unlink(missing_ok=True)
        return Worker(name, function, log, thread_environment(self.machine.threads))

    # 2. Candidates, one process each; what is stored already starts none.

    def build_candidate(self, plan: CandidatePlan, original: Original) -> Outcome:
        outcome = Outcome(plan)
        if plan.unavailable:
            self.listen("finished", candidate=plan.name, status="unavailable",
                        note=plan.unavailable)  # fmt: skip
            return outcome
        keys = keys_of(plan, self.spec, original, self.machine)
        if not self._from_cache(outcome, keys):
            outcome.steps.clear()
            self._in_process(outcome, original)
        status = "failed" if outcome.error else "built"
        note = outcome.error.what if outcome.error else None
        self.listen("finished", candidate=plan.name, status=status, note=note)
        return outcome

    def _from_cache(self, outcome: Outcome, keys: list[str]) -> bool:
        """Whether every step and the engine are stored; then no process is needed."""
        if self.options.dump is not None:
            return False
        entries = [self.cache.get(key) for key in keys]
        if not all(entries) or not self.cache.get(keys[-1], check=True):
            return False
        records = [Step.model_validate({**e.record["step"], "cached": True,
                                        "cache_reason": "same input, options and versions"})
                   for e in entries if e is not None]  # fmt: skip
        outcome.steps, outcome.lowering = records[:-1], records[-1]
        self._from_engine(outcome, keys[-1])
        return True

    def _from_engine(self, outcome: Outcome, key: str) -> None:
        entry = self.cache.get(key)
        if entry is not None:
            outcome.engine, outcome.folder = entry.record, entry.folder / FORM

    def _in_process(self, outcome: Outcome, original: Original) -> None:
        plan = outcome.plan
        request = {
            "spec": self.spec_data, "base": str(self.base), "cache": str(self.cache.root),
            "machine": dataclasses.asdict(self.machine), "quantized": self.quantized,
            "original": original.to_dict(), "candidate": plan.name, "variant": plan.variant,
            "dump": str(self.options.dump) if self.options.dump else None,
            "verify_each": self.options.verify_each,
        }  # fmt: skip
        name = plan.name if plan.variant else f"baseline {plan.name}"
        step = "starting"
        with self._worker(name, "candidate") as worker:
            try:
                worker.request(request)
                for event in worker.events():
                    if event["event"] == "doing":
                        step = event["step"]
                        self.listen("step", candidate=plan.name, step=step)
                    elif event["event"] == "progress":
                        self.listen("step", candidate=plan.name,
                                    step=f"{step}: {event['message']}")  # fmt: skip
                    elif event["event"] == "step":
                        outcome.steps.append(Step.model_validate(event["record"]))
                    elif event["event"] == "engine":
                        outcome.lowering = Step.model_validate(event["record"])
                        self._from_engine(outcome, event["key"])
            except MegacompileError as error:
                outcome.error, outcome.failed_step = error, step

    # 3. Measuring: baselines and engines, each in its worker, interleaved.

    def measure(
        self, original: Original, outcomes: list[Outcome], lowered: list[Outcome],
        remembered: bool,
    ) -> tuple[dict[str, Measured], bool]:  # fmt: skip
        """Race everything that was built. The second result says that the model is not the
        recorded one any more."""
        built = [o for o in outcomes if o.folder is not None]
        if not built:
            return {}, False
        contestants = self._baselines(lowered)
        contestants += [_contestant(o, o.plan.name, evaluates=True) for o in built]
        common = {"spec": self.spec_data, "base": str(self.base),
                  "machine": dataclasses.asdict(self.machine),
                  "original": original.to_dict()}  # fmt: skip
        wants_metric = self.spec.data.evaluation is not None
        start = time.perf_counter()
        evaluating = self.clock.evaluation
        with Session(common, self.logs / "measure", self.machine.threads, self.say) as session:
            for contestant in contestants:
                loaded = session.load(contestant).loaded
                if contestant.confirm and remembered and self._changed(loaded, original):
                    return {}, True
            for contestant in contestants:
                if wants_metric and contestant.evaluates:
                    with self.clock.part("evaluation"):
                        self._evaluate(session, contestant.name)
            for number, point in enumerate(self.spec.points()):
                session.race(point, self.spec.benchmark.seconds, self.spec.seed + number)
            measured = session.measured
        evaluating = self.clock.evaluation - evaluating
        self.clock.measuring += time.perf_counter() - start - evaluating
        first = measured[contestants[0].name]
        if first.error is not None:
            raise first.error  # without the first baseline there is nothing to compare with
        return measured, False

    def _evaluate(self, session: Session, name: str) -> None:
        session.evaluate(name)
        error = session.measured[name].error
        # A hook that fails on the original is the user's to mend: nothing can be judged without.
        if error is not None and (name == self.plan.baselines[0] or isinstance(error, DataError)):
            raise error

    def _baselines(self, lowered: list[Outcome]) -> list[Contestant]:
        by_name = {o.plan.backend.name: o for o in lowered}
        found: list[Contestant] = []
        for name in self.plan.baselines:
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

    def _changed(self, loaded: dict[str, Any], original: Original) -> bool:
        if not loaded or "fingerprint" not in loaded:
            return False
        return bool(loaded["fingerprint"] != original.fingerprint
                    or loaded.get("calibration_hash") != original.calibration_hash)  # fmt: skip

    # 4. Judging, and everything written down.

    def judge(
        self, original: Original, outcomes: list[Outcome], lowered: list[Outcome],
        measured: dict[str, Measured],
    ) -> Report:  # fmt: skip
        points = self.spec.points()
        batch = [self._batch(point) for point in points]
        names = [n for n in self.plan.baselines if n in measured]
        first = measured[names[0]] if names else None
        checks = self._checks(first, measured)
        baselines = []
        for name in self.plan.baselines:
            plain = next((o for o in lowered if o.plan.backend.name == name), None)
            baselines.append(_baseline(name, plain, measured.get(name)))
            one = measured.get(name)
            if one is not None and one.error is None:
                against = first if one is not first else None
                baselines[-1].points = judge.points_of(one, points, batch, against, checks)
        candidates = [self._candidate(o, measured.get(o.plan.name)) for o in outcomes]
        rival = judge.best_baseline(baselines)
        for candidate in candidates:
            one = measured.get(candidate.name)
            if candidate.status != "built" or one is None or first is None:
                continue
            candidate.points = judge.points_of(one, points, batch, first, checks)
            if rival is not None and one.times and (checks[0] is None or checks[0].passed):
                candidate.versus_best_baseline = judge.ratio_of(
                    measured[rival.name].times[0], one.times[0])  # fmt: skip
            metric = baselines[0].metric if baselines else {}
            candidate.gates = judge.gates_of(self.spec.budget, candidate, metric)
            failed = [g.name for g in candidate.gates if not g.passed]
            if failed:
                candidate.status = "outside_budget"
                candidate.reason = "outside the budget in " + ", ".join(failed)
        check = checks[0] if checks else None
        verdict, winner, sentence = judge.choose(candidates, baselines, check)
        chosen = next((c for c in candidates if c.name == winner), None)
        return Report(
            name=self.spec.name, verdict=verdict, winner=winner, sentence=sentence,
            created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            warnings=self._warnings(original, check), environment=self.environment,
            source=Source(form=original.form, reference=original.reference,
                          fingerprint=original.fingerprint, parameters=original.parameters,
                          size_bytes=original.size_bytes, dims=points[0],
                          operations=original.operations, bytes_moved=original.bytes_moved),
            spec=self.spec_data, baselines=baselines, candidates=candidates,
            aa_check=AACheck(ratio=check.ratio, low=check.low, high=check.high,
                             passed=check.passed, note=check.note) if check else None,
            ceiling=ceiling_of(original, chosen, self.machine, self.cache, self.say)
            if measured else None,
            provenance=self._provenance(),
        )  # fmt: skip

    def _checks(
        self, first: Measured | None, measured: dict[str, Measured]
    ) -> list[AAResult | None]:
        again = measured.get(first.contestant.name + AGAIN) if first else None
        if first is None or again is None:
            return [None for _ in self.spec.points()]
        return [aa_check(a.block_medians_ms, b.block_medians_ms)
                for a, b in zip(first.times, again.times, strict=False)]  # fmt: skip

    def _batch(self, point: dict[str, int]) -> int:
        """Entries of the first input's first axis at a point: what throughput counts."""
        shape = next(iter(self.spec.tensors().values())).shape
        if not shape:
            return 1
        return point[shape[0]] if isinstance(shape[0], str) else shape[0]

    def _candidate(self, outcome: Outcome, measured: Measured | None) -> Candidate:
        plan = outcome.plan
        found = Candidate(name=plan.name, variant=plan.variant, backend=plan.backend.name,
                          status="built", steps=outcome.steps, lowering=outcome.lowering)
        error = outcome.error or (measured.error if measured else None)
        if plan.unavailable:
            found.status, found.reason, found.remedy = "unavailable", plan.unavailable, plan.remedy
        elif error is not None:
            found.status, found.reason, found.remedy = "failed", _reason(error), error.remedy
            found.failed_step = outcome.failed_step or "measuring"
        if outcome.engine is not None and outcome.folder is not None:
            found.precision = outcome.engine["precision"]
            if outcome.engine["emulated"]:
                found.notes.append(f"{found.precision} is emulated on this CPU")
            files = [f for f in outcome.folder.rglob("*") if f.is_file()]
            found.files = {str(f.relative_to(outcome.folder)): f.stat().st_size for f in files}
            found.size_bytes = sum(found.files.values())
        known = [s.parameters for s in outcome.steps if s.parameters is not None]
        found.parameters = known[-1] if known else None
        if measured is not None and found.status == "built":
            found.load_seconds = measured.loaded.get("load_seconds")
            found.metric = _metrics(measured)
        return found

    def _warnings(self, original: Original, check: AAResult | None) -> list[str]:
        found = list(original.notes)
        if check is not None and not check.passed:
            found.append(f"speed-ups are withheld: {check.note}")
        load = self.environment.load_average
        if load is not None and load > 0.5 * self.environment.cores:
            found.append(f"the machine was busy when the build began (load average {load:.1f})")
        return found

    def _provenance(self) -> Provenance:
        path = self.loaded.document.name
        files = {}
        for hook in (self.spec.model.python, *(h.python for h in (
                self.spec.data.calibration, self.spec.data.evaluation) if h)):  # fmt: skip
            if hook and hook.partition(":")[0].endswith(".py"):
                name = hook.rpartition(":")[0]
                files[name] = file_sha256(self.base / name)
        spec_file = Path(path)
        spec_hash = file_sha256(spec_file) if spec_file.is_file() else key_of(self.spec_data)
        return Provenance(command=_command(), spec_path=path, spec_sha256=spec_hash, files=files,
                          commit=_commit(self.base), seed=self.spec.seed)  # fmt: skip

    def write_winner(
        self, report: Report, outcomes: list[Outcome], original: Original
    ) -> Path | None:
        """The winner's bundle, copied from the store: no engine runs in this process."""
        outcome = next((o for o in outcomes if o.plan.name == report.winner), None)
        if outcome is None or outcome.folder is None or outcome.engine is None:
            return None
        self.say(f"writing the bundle of {report.winner}")
        backend = outcome.plan.backend
        contents = Contents(
            name=self.spec.name, candidate=outcome.plan.name, backend=backend.name,
            options=backend.model_dump(mode="json"), precision=outcome.engine["precision"],
            needs_isa=tuple(outcome.engine["needs_isa"]), engine=outcome.folder,
            signature=original.signature(self.spec), spec=self.spec_data,
            sample_inputs=original.input_sets()[0].feeds,
            sample_outputs=outcome.folder.parent / SAMPLES, fingerprint=original.fingerprint,
            points=self.spec.points(), libraries=backend.libraries,
        )  # fmt: skip
        return write_bundle(contents, self.options.build_dir / self.spec.name, self.machine)

    def _build_time(self, outcomes: list[Outcome]) -> BuildTime:
        fresh = [s for o in outcomes for s in o.steps if not s.cached]
        engines = [o.lowering for o in outcomes if o.lowering and not o.lowering.cached]
        total = time.perf_counter() - self.clock.start
        passes = sum(s.seconds for s in fresh)
        lowering = sum(s.seconds for s in engines)
        verification = sum(s.verification_seconds for s in [*fresh, *engines])
        own = total - passes - lowering - self.clock.measuring - self.clock.evaluation
        return BuildTime(total=total, passes=passes, lowering=lowering, verification=verification,
                         measuring=self.clock.measuring, evaluation=self.clock.evaluation,
                         own=own)  # fmt: skip

    def _exit_code(self, report: Report, outcomes: list[Outcome]) -> int:
        errors = [o.error for o in outcomes if o.error is not None]
        # If every candidate fails over the user's own model or data, that is what the code says.
        if report.verdict == "failed" and errors and len(errors) == len(outcomes):
            return max(e.exit_code for e in errors)
        return EXIT_CODES[report.verdict]


def _contestant(outcome: Outcome, name: str, evaluates: bool = False) -> Contestant:
    backend = outcome.plan.backend
    return Contestant(name, backend.name, backend.model_dump(mode="json"), str(outcome.folder),
                      evaluates=evaluates)  # fmt: skip


def _baseline(name: str, plain: Outcome | None, measured: Measured | None) -> Baseline:
    found = Baseline(name=name, precision="float32")
    error = (plain.error if plain else None) or (measured.error if measured else None)
    if plain is not None and plain.plan.unavailable:
        found.status, found.reason = "unavailable", plain.plan.unavailable
    elif error is not None:
        found.status, found.reason = "failed", _reason(error)
    if plain is not None and plain.engine is not None and plain.lowering is not None:
        found.precision = plain.engine["precision"]
        found.size_bytes = plain.lowering.size_bytes
    if measured is not None:
        found.load_seconds = measured.loaded.get("load_seconds")
        found.metric = _metrics(measured)
    return found


def _metrics(measured: Measured) -> dict[str, Metric]:
    return {name: Metric(**value) for name, value in measured.metrics.items()}


def _reason(error: MegacompileError) -> str:
    parts = [f"{error.where}: {error.what}" if error.where else error.what]
    parts += [f"{label} {text}" for label, text in
              (("expected", error.expected), ("got", error.got), ("because", error.cause)) if text]
    return "; ".join(parts)


def _command() -> str:
    return shlex.join(["megacompile", *sys.argv[1:]])


def _commit(folder: Path) -> str | None:
    """The commit the spec's folder stands at, marked when files differ from it."""
    def git(*arguments: str) -> str | None:
        try:
            done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True,
                                  text=True, timeout=10, check=False)  # fmt: skip
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    commit = git("rev-parse", "HEAD")
    return f"{commit} (changed)" if commit and git("status", "--porcelain", "-uno") else commit
