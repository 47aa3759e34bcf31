"""Step 5: what a build leaves behind: the winner's bundle, or one to be finished elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from megacompile.builder.job import Job, Outcome
from megacompile.builder.keys import SAMPLES
from megacompile.engines import (
    Contents,
    Part,
    Unfinished,
    folder_of,
    write_bundle,
    write_unfinished,
)
from megacompile.measure import Original
from megacompile.models import output_shapes
from megacompile.plan import CandidatePlan, Effect
from megacompile.report import Report
from megacompile.spec import Spec
from megacompile.system import hooks, python_sources


def write_product(
    job: Job,
    report: Report,
    outcomes: Sequence[Outcome],
    lowered: Sequence[Outcome],
    original: Original,
) -> Path | None:
    """The bundle of a finished build, copied from the store: no engine runs in this process.
    None if there is nothing that anyone could use."""
    if report.verdict == "built_not_executed":
        return _write_unfinished(job, report, outcomes, lowered, original)
    outcome = next((o for o in outcomes if o.plan.name == report.winner), None)
    if outcome is None or outcome.folder is None or outcome.engine is None:
        return None
    job.say(f"writing the bundle of {report.winner}")
    backend, signature = outcome.plan.backend, original.signature(job.spec)
    sets = original.input_sets()
    contents = Contents(
        name=job.spec.name,
        candidate=outcome.plan.name,
        backend=backend.name,
        options=backend.model_dump(mode="json"),
        precision=outcome.engine["precision"],
        needs_isa=tuple(outcome.engine["needs_isa"]),
        engine=outcome.folder,
        signature=signature,
        spec=job.spec_data,
        sample_inputs=sets[0].feeds,
        sample_outputs=outcome.folder.parent / SAMPLES,
        fingerprint=original.fingerprint,
        points=job.spec.points(),
        libraries=backend.libraries,
        outputs=output_shapes(signature, sets),
        hooks=serving_sources(job.spec, job.base),
    )
    return write_bundle(contents, job.options.build_dir / job.spec.name, job.machine)


def serving_sources(spec: Spec, base: Path) -> list[Path]:
    """The user's Python steps for serving, with the files beside them that they import.

    Raises:
        SpecError: a file that the spec names is not there.
    """
    files: set[Path] = set()
    for reference in spec.deploy.triton.hooks if spec.deploy.triton is not None else ():
        path, _ = hooks.locate(reference, base)
        if path is not None:
            files |= set(python_sources(path))
    return sorted(files)


def _write_unfinished(
    job: Job,
    report: Report,
    outcomes: Sequence[Outcome],
    lowered: Sequence[Outcome],
    original: Original,
) -> Path:
    waiting = {c.name for c in report.candidates if c.status == "built" and not c.executed}
    chosen = [(o, False) for o in outcomes if o.plan.name in waiting]
    chosen += [(o, True) for o in lowered if o.folder is not None]
    job.say(f"writing a bundle of {len(chosen)} engines that are to be finished on the target")
    signature, sets = original.signature(job.spec), original.input_sets()
    contents = Unfinished(
        name=job.spec.name,
        parts=[_part(outcome, baseline) for outcome, baseline in chosen],
        engines=[outcome.folder for outcome, _ in chosen if outcome.folder is not None],
        signature=signature,
        spec=job.spec_data,
        checks=[one for one in sets if not one.heavy],
        fingerprint=original.fingerprint,
        points=job.spec.points(),
        report=report,
        libraries=sorted({name for o, _ in chosen for name in o.plan.backend.libraries}),
        outputs=output_shapes(signature, sets),
        hooks=serving_sources(job.spec, job.base),
    )
    return write_unfinished(contents, job.options.build_dir / job.spec.name, job.machine)


def _part(outcome: Outcome, baseline: bool) -> Part:
    plan, engine = outcome.plan, outcome.engine
    assert engine is not None  # it was built
    name = plan.backend.name if baseline else plan.name
    return Part(
        name=name,
        backend=plan.backend.name,
        options=plan.backend.model_dump(mode="json"),
        precision=engine["precision"],
        effect=plan.effect.value,
        dtype=_dtype(plan),
        baseline=baseline,
        folder=folder_of(f"baseline-{name}" if baseline else name),
        needs_isa=tuple(engine["needs_isa"]),
    )


def _dtype(plan: CandidatePlan) -> str:
    """The dtype that its passes round to."""
    if plan.effect is Effect.EXACT:
        return "float32"
    passes = [step.pass_ for step in plan.steps]
    return next((str(p.dtype) for p in passes if hasattr(p, "dtype")), "float32")
