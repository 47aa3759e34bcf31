"""`megacompile finish`: engines that were built elsewhere, verified, measured and judged here."""

from __future__ import annotations

import datetime
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from megacompile.builder import judge
from megacompile.engines import (
    DEPLOY,
    REPORT,
    Contents,
    Part,
    checks_of,
    here,
    parts_of,
    read_unfinished,
    write_bundle,
)
from megacompile.errors import BundleError, MegacompileError
from megacompile.measure import AGAIN, Contestant, Measured, Session
from megacompile.models import Signature
from megacompile.plan import Machine
from megacompile.report import Baseline, Candidate, ErrorRecord, Report, read_report, write_report
from megacompile.spec import Benchmark, Budget, batch_of
from megacompile.system import environment, output_lock

SAMPLES = "samples.npz"


@dataclass(frozen=True)
class Finished:
    """`bundle` is the folder that now holds the winner; None if nothing won."""

    report: Report
    report_path: Path
    bundle: Path | None


class _Target:
    """The bundle on the target machine: its parts, and a place for rebuilt engines."""

    def __init__(self, folder: Path, work: Path, say: Callable[[str], None]) -> None:
        self.folder, self.work, self.say = folder, work, say
        self.manifest = read_unfinished(folder)
        self.parts = parts_of(self.manifest)
        self.signature = Signature.from_dict(self.manifest["signature"])
        self.machine = _machine(folder, self.manifest)
        self.report = read_report(folder / REPORT)
        self.engines: dict[str, Path] = {}
        self.failed: dict[str, MegacompileError] = {}
        self.rebuilt: dict[str, str] = {}

    def seconds(self) -> float:
        """The spec's time limit of each benchmark point."""
        return Benchmark.model_validate(self.report.spec.get("benchmark") or {}).seconds

    def ordered(self) -> list[Part]:
        """The parts whose engines are there, baselines first."""
        there = [part for part in self.parts if part.name not in self.failed]
        return sorted(there, key=lambda part: not part.baseline)

    def samples(self, number: int) -> Path:
        """Where the answers of a part to the first input set are kept, by its place in order."""
        return self.work / f"{number}-{SAMPLES}"

    def fit(self) -> None:
        """Every part's engine for this machine: as stored, or built again from its ONNX file."""
        for part in self.parts:
            stored = self.folder / part.folder
            self.engines[part.name] = stored
            try:
                backend = part.make_backend()
                reason = backend.stale(stored, self.machine)
                if reason is None:
                    continue
                self.say(f"building {part.name} again: {reason}")
                place = self.work / part.folder
                shutil.copytree(stored, place)
                backend.rebuild(place, self.machine, self.signature, self.say)
                self.engines[part.name], self.rebuilt[part.name] = place, reason
            except MegacompileError as error:
                self.failed[part.name] = error


def finish_bundle(
    folder: Path, report_dir: Path | None, say: Callable[[str], None], seconds: float | None = None
) -> Finished:
    """Verify, measure and judge a bundle on the machine it was built for; a winner replaces it.

    Args:
        folder: the bundle that `megacompile build` wrote, build/NAME.
        report_dir: where the report goes; default reports/NAME.
        seconds: time limit of each benchmark point; default: the spec's.

    Raises:
        BundleError: damaged, finished already, or this is not its target either.
    """
    with (
        tempfile.TemporaryDirectory(prefix="megacompile-finish-") as place,
        output_lock(folder.parent, folder.name),
    ):
        target = _Target(folder, Path(place), say)
        target.fit()
        measured, errors = _race(target, seconds or target.seconds())
        report = _judged(target, measured, errors)
        path = write_report(report, report_dir or Path("reports") / report.name)
        bundle = _write_winner(target, report)
    return Finished(report, path, bundle)


def _machine(folder: Path, manifest: Mapping[str, Any]) -> Machine:
    machine = here(device=manifest["target"]["device"])
    reason = machine.absent()
    if reason is not None:
        raise BundleError(
            what="the bundle can't be finished here",
            where=str(folder),
            expected=" or ".join(manifest["target"]["arch"]),
            got=reason,
            remedy="run `megacompile finish` on the target machine",
        )
    return machine


def _race(target: _Target, seconds: float) -> tuple[dict[str, Measured], dict[str, ErrorRecord]]:
    """Load and verify every engine, then time all that answer rightly."""
    common = {"unfinished": str(target.folder.resolve()), "threads": target.machine.threads}
    ordered = target.ordered()
    errors: dict[str, ErrorRecord] = {}
    logs = target.work / "logs"
    with Session(common, logs, target.machine.threads, target.say) as session:
        for number, part in enumerate(ordered):
            engine = str(target.engines[part.name].resolve())
            session.load(Contestant(part.name, part.backend, part.options, engine))
            samples = str(target.samples(number))
            found = session.verify(part.name, part.effect, part.dtype, samples)
            if found is not None:
                errors[part.name] = ErrorRecord.model_validate(found)
            if number == 0:
                session.load(Contestant(part.name + AGAIN, part.backend, part.options, engine))
        for number, point in enumerate(target.manifest["points"]):
            session.race(point, seconds, number)
        return session.measured, errors


def _judged(
    target: _Target, measured: dict[str, Measured], errors: Mapping[str, ErrorRecord]
) -> Report:
    """The stored report with what was found here in place of what was not known there."""
    report = target.report
    points = target.manifest["points"]
    # Speed-ups are quoted against a baseline that ran here, never against another candidate.
    ran = [measured[part.name] for part in target.parts if part.baseline and part.name in measured]
    first = next((one for one in ran if one.error is None), None)
    batch = [batch_of(target.signature.tensors, point) for point in points]
    race = judge.Race.of(points, batch, first, measured)
    original = report.baselines[0].metric if report.baselines else {}
    known = {part.name: part for part in target.parts}
    for baseline in report.baselines:
        if baseline.name in known:
            _executed(target, baseline, measured.get(baseline.name))
            judge.judge_baseline(race, baseline, measured.get(baseline.name))
    # The first baseline that ran is what speed-ups are quoted against.
    report.baselines.sort(key=lambda baseline: not baseline.points)
    best = judge.best_baseline(report.baselines)
    rival = measured[best.name] if best else None
    budget = Budget.model_validate(report.spec.get("budget") or {})
    for candidate in report.candidates:
        if candidate.name not in known:
            continue
        _executed(target, candidate, measured.get(candidate.name))
        if candidate.lowering is not None:
            candidate.lowering.error = errors.get(candidate.name)
        mine = measured.get(candidate.name)
        judge.judge_candidate(race, budget, candidate, mine, rival, original)
    report.verdict, report.winner, report.sentence = judge.choose(
        report.candidates, report.baselines, race.check
    )
    report.aa_check = judge.aa_record(race.check)
    report.warnings += _warnings(report, target)
    report.environment = environment(target.machine.threads)
    report.created = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return report


def _executed(target: _Target, engine: Baseline | Candidate, one: Measured | None) -> None:
    """What loading and verifying here came to."""
    error = target.failed.get(engine.name) or (one.error if one else None)
    engine.executed = error is None
    if error is not None:
        engine.status, engine.reason = "failed", str(error).splitlines()[0]
    if one is not None:
        engine.load_seconds = one.loaded.get("load_seconds")
    if isinstance(engine, Candidate):
        engine.remedy = error.remedy if error else None
        engine.failed_step = "finish" if error else None
        folder = target.engines[engine.name]
        files = [f for f in sorted(folder.rglob("*")) if f.is_file()]
        engine.files = {str(f.relative_to(folder)): f.stat().st_size for f in files}
        engine.size_bytes = sum(engine.files.values())


def _warnings(report: Report, target: _Target) -> list[str]:
    found = [f"{name} was built again here: {reason}" for name, reason in target.rebuilt.items()]
    if any(candidate.metric for candidate in report.candidates):
        found.append(
            "metrics are those of the ONNX files, measured where the bundle was built; "
            "outputs were verified on this machine"
        )
    absent = [b.name for b in report.baselines if b.status == "unavailable"]
    if absent:
        found.append(
            f"not raced here: {', '.join(absent)}; `megacompile build` with the original "
            "model on this machine does that"
        )
    return found


def _write_winner(target: _Target, report: Report) -> Path | None:
    part = next((one for one in target.parts if one.name == report.winner), None)
    if part is None:
        return None
    manifest = target.manifest
    contents = Contents(
        name=manifest["name"],
        candidate=part.name,
        backend=part.backend,
        options=dict(part.options),
        precision=part.precision,
        needs_isa=part.needs_isa,
        engine=target.engines[part.name],
        signature=target.signature,
        spec=report.spec,
        sample_inputs=checks_of(target.folder, manifest)[0].feeds,
        sample_outputs=target.samples(target.ordered().index(part)),
        fingerprint=manifest["fingerprint"],
        points=manifest["points"],
        libraries=part.make_backend().libraries,
        outputs=manifest["outputs"],
        hooks=sorted((target.folder / DEPLOY).glob("*.py")),
    )
    return write_bundle(contents, target.folder, target.machine)
