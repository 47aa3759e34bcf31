"""What the commands do. Each returns its exit code; errors are raised for `cli` to show."""

from __future__ import annotations

import atexit
import json
import sys
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from megacompile.errors import MegacompileError, SpecError

if TYPE_CHECKING:
    from megacompile.progress import Progress
    from megacompile.report.model import Report


def out(text: str) -> None:
    print(text)


def build(arguments: Namespace) -> int:
    from megacompile.builder import build as run
    from megacompile.job.context import Options
    from megacompile.progress import Progress

    if _follows():
        return 0
    options = Options(
        build_dir=Path(arguments.build_dir),
        report_dir=Path(arguments.report_dir) if arguments.report_dir else None,
        resume=not arguments.fresh,
        dump=Path(arguments.dump) if arguments.dump else None,
        verify_each=arguments.verify == "each",
    )
    progress = Progress("json" if arguments.json else "auto")
    with progress.running():
        result = run(Path(arguments.spec), options, progress)
    return _conclude(
        arguments, progress, result.report, result.report_path, result.bundle, result.exit_code
    )


def finish(arguments: Namespace) -> int:
    from megacompile.builder import EXIT_CODES
    from megacompile.finish import finish as run
    from megacompile.progress import Progress

    progress = Progress("json" if arguments.json else "auto")
    with progress.running():
        found = run(
            Path(arguments.bundle),
            Path(arguments.report_dir) if arguments.report_dir else None,
            lambda message: progress("say", message=message),
            arguments.seconds,
        )
    return _conclude(
        arguments,
        progress,
        found.report,
        found.report_path,
        found.bundle,
        EXIT_CODES[found.report.verdict],
    )


def _conclude(
    arguments: Namespace,
    progress: Progress,
    report: Report,
    path: Path,
    bundle: Path | None,
    exit_code: int,
) -> int:
    """Say how a build ended and where its files are."""
    from rich.console import Console

    from megacompile.report.terminal import render_terminal

    if arguments.json:
        progress(
            "result",
            verdict=report.verdict,
            winner=report.winner,
            report=str(path),
            exit_code=exit_code,
            bundle=str(bundle) if bundle else None,
        )
        return exit_code
    Console(soft_wrap=False).print(render_terminal(report))
    out(f"report: {path.with_suffix('.html')}")
    if bundle:
        out(f"bundle: {bundle}")
    return exit_code


def _follows() -> bool:
    """Under torchrun the first process builds; the others help it with distributed steps, and
    this returns when it is done."""
    import os

    if int(os.environ.get("WORLD_SIZE", "1")) < 2 or "TORCHELASTIC_RUN_ID" not in os.environ:
        return False
    from megacompile.training.crew import dismiss, follow

    if os.environ["RANK"] == "0":
        atexit.register(dismiss)
        return False
    follow()
    return True


def plan(arguments: Namespace) -> int:
    from megacompile.builder import quantized_source, resolve_target
    from megacompile.cache import Cache, default_root
    from megacompile.operators import operators_refused
    from megacompile.plan import make_plan
    from megacompile.planview import plan_as_data, render_plan, stored_steps
    from megacompile.spec.load import load_spec

    status = 0
    problems: list[MegacompileError] = []
    for name in arguments.spec:
        try:
            loaded = load_spec(Path(name))
            found = make_plan(loaded, resolve_target, quantized_source(loaded))
            stored = stored_steps(found, loaded.base, Cache(default_root()))
        except MegacompileError as error:
            problems.append(error)
            continue
        refused = operators_refused(loaded, found) if arguments.check_operators else None
        if arguments.json:
            out(json.dumps(plan_as_data(found, stored, refused), indent=2))
        else:
            out(render_plan(found, stored, refused))
        if any(refused.values() if refused else ()):
            status = 4
    for problem in problems:
        print(problem, file=sys.stderr)
        status = problem.exit_code
    return status


def validate(arguments: Namespace) -> int:
    from megacompile.builder import quantized_source, resolve_target
    from megacompile.plan import make_plan
    from megacompile.spec.load import load_spec

    for name in arguments.spec:
        loaded = load_spec(Path(name))
        make_plan(loaded, resolve_target, quantized_source(loaded))
        out(f"{name}: valid")
    return 0


def schema(arguments: Namespace) -> int:
    from megacompile.schema import spec_schema

    out(json.dumps(spec_schema(), indent=2))
    return 0


def passes(arguments: Namespace) -> int:
    from megacompile import registry
    from megacompile.passbase import consumes, produces

    rows: list[dict[str, Any]] = []
    for name in sorted(registry.pass_table()):
        for cls in registry.pass_classes(name, Path()):
            options = {key: _described(field) for key, field in cls.model_fields.items()}
            rows.append(
                {
                    "name": name,
                    "consumes": consumes(cls),
                    "produces": produces(cls),
                    "effect": cls.effect.value,
                    "inserted_by_planner": cls.insertable,
                    "options": options,
                }
            )
    if arguments.json:
        out(json.dumps(rows, indent=2))
        return 0
    shown: set[str] = set()
    for row in rows:
        mark = "  (inserted by the planner)" if row["inserted_by_planner"] else ""
        out(f"{row['name']:<16} {row['consumes']:>8} -> {row['produces']:<8} {row['effect']}{mark}")
        if row["name"] not in shown:
            shown.add(row["name"])
            for key, text in row["options"].items():
                out(f"    {key}: {text}")
    return 0


def _described(field: Any) -> str:
    from pydantic import BaseModel

    value = None if field.is_required() else field.get_default(call_default_factory=True)
    shown = value.model_dump(mode="json") if isinstance(value, BaseModel) else value
    default = "required" if field.is_required() else f"default {json.dumps(shown)}"
    return f"{field.description or ''} ({default})".strip()


def backends(arguments: Namespace) -> int:
    from megacompile import registry
    from megacompile.bundle import here

    machine = here()
    rows: list[dict[str, Any]] = []
    for name in sorted(registry.backend_table()):
        cls = registry.backend_class(name)
        found = cls().availability(machine)
        rows.append(
            {
                "name": name,
                "accepts": list(cls.accepts),
                "available": found.yes,
                "reason": found.reason,
                "remedy": found.remedy,
                "options": {k: _described(f) for k, f in cls.model_fields.items()},
            }
        )
    if arguments.json:
        out(json.dumps(rows, indent=2))
        return 0
    for row in rows:
        state = "available" if row["available"] else f"unavailable: {row['reason']}"
        out(f"{row['name']:<14} takes {', '.join(row['accepts']):<9} {state}")
        if row["remedy"]:
            out(f"    to do: {row['remedy']}")
        for key, text in row["options"].items():
            out(f"    {key}: {text}")
    return 0


def doctor(arguments: Namespace) -> int:
    from megacompile import registry
    from megacompile.bundle import here
    from megacompile.cache import Cache, default_root
    from megacompile.ceiling import machine_ceilings
    from megacompile.gpus import no_gpu_reason
    from megacompile.measure.machine import environment

    machine = here()
    found = environment(machine.threads)
    ceilings = machine_ceilings(machine, Cache(default_root()), lambda _: None, fresh=True)
    states = {
        n: registry.backend_class(n)().availability(machine)
        for n in sorted(registry.backend_table())
    }
    if arguments.json:
        out(
            json.dumps(
                {
                    "environment": found.model_dump(),
                    "rates": ceilings.rates,
                    "bandwidth": ceilings.bandwidth,
                    "backends": {n: s.reason or "available" for n, s in states.items()},
                },
                indent=2,
            )
        )
        return 0
    out(f"machine      {found.machine}, {found.cores} cores, {found.memory_mb / 1000:.1f} GB")
    out(f"threads      {found.threads} (this process's affinity and cgroup)")
    out(f"instructions {', '.join(found.isa)}")
    out(f"GPUs         {', '.join(found.gpus) or no_gpu_reason()}")
    out(f"load         {found.load_average} (figures are only worth something on an idle machine)")
    for dtype, rate in ceilings.rates.items():
        out(f"matrix products in {dtype:<9} {rate / 1e9:8.0f} GOP/s")
    out(f"memory bandwidth            {ceilings.bandwidth / 1e9:8.1f} GB/s")
    for name, state in states.items():
        out(f"{name:<14} {state.reason or 'available'}")
    return 0


def run(arguments: Namespace) -> int:
    from megacompile.bundle import load_compiled
    from megacompile.tensors import load_arrays, save_arrays

    model = load_compiled(arguments.bundle, arguments.threads)
    path = Path(arguments.input)
    try:
        given = load_arrays(path)
    except (OSError, ValueError) as error:
        raise SpecError(
            what="the input file can't be read",
            where=str(path),
            cause=str(error),
            expected="an .npz file with one array per input",
        ) from error
    outputs = model.leaves(given)
    if arguments.output:
        save_arrays(Path(arguments.output), outputs)
        out(f"written: {arguments.output}")
    for name, array in outputs.items():
        out(f"{name}: {array.dtype} {list(array.shape)}")
    return 0


def bench(arguments: Namespace) -> int:
    from megacompile.bench import bench_bundle, render_bench

    found = bench_bundle(Path(arguments.bundle), arguments.seconds)
    out(json.dumps(found, indent=2) if arguments.json else render_bench(found))
    return 0


def export_triton(arguments: Namespace) -> int:
    from megacompile.triton.export import export_triton as run

    found = run(Path(arguments.bundle), Path(arguments.repository), out, arguments.new_config)
    for one in found.curve:
        out(f"  batch {one.batch:>3}: {one.latency_ms:8.2f} ms, {one.throughput:8.0f} samples/s")
    if found.tuning is not None:
        sizes = ", ".join(map(str, found.tuning.preferred)) or "any"
        out(
            f"dynamic batching: preferred sizes {sizes}, a request waits at most "
            f"{found.tuning.delay_us} us"
        )
    for note in found.notes:
        out(note)
    out(f"written: {', '.join(found.models)}, version {found.version}")
    out(f"clients call '{found.name}'")
    return 0


def report(arguments: Namespace) -> int:
    from megacompile.report.store import read_report, write_report

    found = read_report(Path(arguments.report))
    source = Path(arguments.report)
    folder = (
        Path(arguments.output)
        if arguments.output
        else (source if source.is_dir() else source.parent)
    )
    out(f"written: {write_report(found, folder).with_suffix('.html')}")
    return 0


def diff(arguments: Namespace) -> int:
    from megacompile.report.diff import diff_reports, render_diff
    from megacompile.report.store import read_report

    found = diff_reports(read_report(Path(arguments.before)), read_report(Path(arguments.after)))
    out(found.model_dump_json(indent=2) if arguments.json else render_diff(found))
    return 3 if arguments.fail_on_worse and found.worse else 0


def cache(arguments: Namespace) -> int:
    import shutil

    from megacompile.cache import Cache, default_root

    store = Cache(default_root())
    store.remove_leftovers()
    if arguments.clear:
        shutil.rmtree(store.root / "entries", ignore_errors=True)
        out(f"cleared: {store.root}")
        return 0
    if arguments.prune is not None:
        removed, freed = store.prune(arguments.prune)
        out(f"removed {removed} entries, {freed / 1e6:.1f} MB")
    entries = store.entries()
    out(f"{store.root}: {len(entries)} entries, {sum(e[1] for e in entries) / 1e6:.1f} MB")
    return 0


def init(arguments: Namespace) -> int:
    from megacompile.init import to_fill_in, write_spec

    path = write_spec(arguments.model, Path(arguments.output) if arguments.output else None)
    waiting = to_fill_in(path)
    out(f"written: {path}")
    for line in waiting:
        out(line)
    out(f"next: {'fill in the lines above, then ' if waiting else ''}megacompile plan {path}")
    return 0


def write_lmdb(arguments: Namespace) -> int:
    from megacompile.data.lmdbstore import FILE
    from megacompile.data.writing import write_source
    from megacompile.progress import Progress

    out_path = Path(arguments.out)
    progress = Progress("auto")
    with progress.running():
        header = write_source(
            arguments.source,
            Path(),
            out_path,
            progress,
            arguments.names,
            arguments.limit,
            arguments.overwrite,
        )
    size = (out_path / FILE).stat().st_size
    out(f"written: {out_path}: {header.samples:,} samples, {size / 1e6:.1f} MB")
    for entry in header.entries:
        shape = "shapes differ" if entry.shape is None else list(entry.shape)
        out(f"    {entry.name}: {entry.dtype} {shape}")
    out(f"use it with `batches: lmdb:{out_path}`")
    return 0
