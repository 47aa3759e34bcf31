"""The main job, as named steps that read top to bottom."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from megacompile.builder.assembly import assemble, build_time
from megacompile.builder.assembly_training import assemble_training
from megacompile.builder.candidates import Workers, all_stored, build_candidates
from megacompile.builder.events import write_events
from megacompile.builder.inspection import forget_original, inspect_original
from megacompile.builder.job import Job, Options, Outcome
from megacompile.builder.measuring import evaluate_original, measure
from megacompile.builder.measuring_training import measure_training
from megacompile.builder.products import serving_sources, write_product
from megacompile.errors import SpecError, did_you_mean
from megacompile.measure import Original
from megacompile.models import source_path
from megacompile.plan import Machine, Plan, make_plan
from megacompile.report import Report, write_report
from megacompile.spec import Loaded, Spec, load_spec, load_spec_data
from megacompile.system import (
    Cache,
    Listener,
    Progress,
    cpu_isa,
    default_root,
    environment,
    local_archs,
    no_gpu_reason,
    output_lock,
    thread_budget,
)

EXIT_CODES = {
    "improved": 0,
    "no_improvement": 3,
    "outside_budget": 3,
    "failed": 4,
    "built_not_executed": 0,
}


@dataclass
class Result:
    """A finished build. `exit_code` is the command's; `bundle` is None without a winner."""

    report: Report
    report_path: Path
    bundle: Path | None
    exit_code: int


def build(
    spec: Path | str | Spec,
    options: Options | None = None,
    listen: Listener | None = None,
    base: Path | None = None,
) -> Result:
    """Build a spec file, or a `Spec` object whose relative paths start from `base`.

    Raises:
        MegacompileError: bad input of any kind, before anything heavy has run where possible.
    """
    options = options or Options()
    loaded = _read(spec, base)
    quantized = quantized_source(loaded)
    plan = make_plan(loaded, resolve_target, quantized)
    serving_sources(plan.spec, loaded.base)  # a missing file is found now, not after the race
    with output_lock(options.build_dir, plan.spec.name):
        job = make_job(loaded, plan, options, listen, quantized)
        try:
            return run(job)
        finally:
            if not options.resume:
                shutil.rmtree(job.cache.root, ignore_errors=True)


def make_job(
    loaded: Loaded, plan: Plan, options: Options, listen: Listener | None, quantized: bool
) -> Job:
    """What the steps of a build share."""
    return Job(
        loaded=loaded,
        plan=plan,
        options=options,
        listen=listen or Progress("quiet"),
        cache=Cache(_store(options)),
        environment=environment(plan.target.threads),
        spec_data=plan.spec.model_dump(mode="json", by_alias=True, exclude_unset=True),
        quantized=quantized,
    )


def _store(options: Options) -> Path:
    if not options.resume:
        return Path(tempfile.mkdtemp(prefix="megacompile-fresh-"))
    return options.cache_dir or default_root()


def run(job: Job) -> Result:
    """Inspect, build, measure, judge, write. Started again, it goes on where it was."""
    job.cache.remove_leftovers()
    original, remembered = inspect_original(job)
    plans = [*job.plan.candidates, *job.plan.lowered_baselines]
    with Workers(job, len(plans)) as workers:
        if not all_stored(job, plans, original):
            workers.warm_up()
        if job.spec.train is None:
            metric, stale = evaluate_original(job, original, remembered)
            if stale:
                return _start_over(job)
        built = build_candidates(job, plans, original, workers)
    if job.spec.train is not None:
        return _finish_training(job, original, built, remembered)
    count = len(job.plan.candidates)
    outcomes, lowered = built[:count], built[count:]
    measured, stale = measure(job, original, outcomes, lowered, remembered)
    if stale:
        return _start_over(job)
    report = assemble(job, original, metric, outcomes, lowered, measured)
    bundle = write_product(job, report, outcomes, lowered, original)
    report.build_seconds = build_time(job, outcomes + lowered)
    return Result(report, _write(job, report), bundle, _exit_code(report, outcomes))


def _finish_training(
    job: Job, original: Original, outcomes: list[Outcome], remembered: bool
) -> Result:
    """Measure steps instead of engines; everything else is as in `run`."""
    trained, stale = measure_training(job, original, outcomes, remembered)
    if stale:
        return _start_over(job)
    report = assemble_training(job, original, outcomes, trained)
    bundle = write_product(job, report, outcomes, [], original)
    report.build_seconds = build_time(job, outcomes)
    return Result(report, _write(job, report), bundle, _exit_code(report, outcomes))


def _write(job: Job, report: Report) -> Path:
    folder = job.options.report_dir or Path("reports") / job.spec.name
    path = write_report(report, folder)
    write_events(report, folder, job.say)
    return path


def _start_over(job: Job) -> Result:
    job.say("the model has changed since it was recorded: starting over")
    forget_original(job)
    return run(job)


def _exit_code(report: Report, outcomes: list[Outcome]) -> int:
    errors = [o.error for o in outcomes if o.error is not None]
    # If every candidate fails over the user's own model or data, that is what the code says.
    if report.verdict == "failed" and errors and len(errors) == len(outcomes):
        return max(e.exit_code for e in errors)
    return EXIT_CODES[report.verdict]


def _read(spec: Path | str | Spec, base: Path | None) -> Loaded:
    if isinstance(spec, Spec):
        data = spec.model_dump(mode="json", by_alias=True, exclude_unset=True)
        return load_spec_data(data, base or Path.cwd(), spec.name)
    return load_spec(Path(spec))


def resolve_target(spec: Spec) -> Machine:
    """Threads from this process's affinity and cgroup, instruction sets from this CPU, compute
    capabilities from the spec or this machine's GPUs.

    Raises:
        SpecError: the target asks for what this machine can't check.
    """
    threads = thread_budget() if spec.target.threads == "auto" else spec.target.threads
    here = cpu_isa()
    if spec.target.device == "cuda":
        arch = tuple(spec.target.arch or local_archs())
        if not arch:
            raise SpecError(
                what="device 'cuda' needs to know the GPU, and there is none here",
                where="target.arch",
                expected="`arch: [sm_89]` or the like",
                got=no_gpu_reason(),
                remedy="name the compute capabilities that the engine is for",
            )
        return Machine("cuda", threads, tuple(here), arch)
    for name in spec.target.isa or []:
        if name not in here:
            raise SpecError(
                what=f"this CPU has no '{name}', so nothing could be checked here",
                where="target.isa",
                expected=", ".join(here) or "none",
                remedy=did_you_mean(name, here) or "build on the target machine",
            )
    isa = tuple(here if spec.target.isa is None else spec.target.isa)
    return Machine("cpu", threads, isa)


def quantized_source(loaded: Loaded) -> bool:
    """Whether an ONNX source holds Q/DQ nodes; their operator name stands in the file as text."""
    spec = loaded.spec
    if spec is None or spec.model.kind != "onnx":
        return False
    path = source_path(spec, loaded.base)
    assert path is not None
    return b"DequantizeLinear" in path.read_bytes()
