"""One candidate in a process of its own: steps, lowering, events to the parent."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from megacompile.builder.lowering import lower
from megacompile.builder.manager import CandidateRun
from megacompile.builder.pass_context import training_origin
from megacompile.measure import (
    Dump,
    Instrument,
    Memory,
    Original,
    Size,
    StepVerification,
    Timing,
    Verification,
    examine,
)
from megacompile.plan import CandidatePlan, Machine, make_plan
from megacompile.report import Step
from megacompile.spec import Spec, load_spec_data
from megacompile.system import Cache, Send


def serve(requests: Iterator[dict[str, Any]], send: Send) -> None:
    """Worker function: one request builds one candidate.

    A worker is started while the candidate before it is still busy; what takes seconds to
    import is there when its own request comes.
    """
    for request in requests:
        if request.get("preload"):
            import torch  # noqa: F401

            continue
        if request.get("check_operators"):
            send({"event": "done", "refused": refused_operators(request, send)})
            continue
        build_candidate(request, send)
        send({"event": "done"})


def build_candidate(request: dict[str, Any], send: Send) -> None:
    """Run all steps of a candidate and lower it; every finished step is sent at once.

    Raises:
        MegacompileError: the step that failed is known to the parent from the last event.
    """
    run = prepare(request, send)
    run.run_steps()
    record, _ = lower(run)
    described = record.model_dump(mode="json", by_alias=True)
    send({"event": "engine", "key": run.keys[-1], "record": described})


def refused_operators(request: dict[str, Any], send: Send) -> list[dict[str, Any]] | None:
    """Run all steps of a candidate and ask its backend's parser; nothing is lowered."""
    run = prepare(request, send)
    run.run_steps()
    found = run.plan.backend.check_operators(run.form())
    return None if found is None else [asdict(one) for one in found]


def prepare(request: dict[str, Any], send: Send) -> CandidateRun:
    """The candidate of a request, its instruments around every step, its events on their way."""
    base = Path(request["base"])
    loaded = load_spec_data(request["spec"], base)
    machine = Machine.from_dict(request["machine"])
    os.environ.setdefault("OMP_NUM_THREADS", str(machine.threads))
    plan = make_plan(loaded, lambda _: machine, request["quantized"])
    original = Original(**request["original"])
    planned = (*plan.candidates, *plan.lowered_baselines)
    chosen = _find(planned, request["candidate"], request["variant"])
    sets = original.input_sets()
    # Entered in this order, left in the reverse: timing ends first, and times the pass alone.
    instruments: list[Instrument] = []
    if request["dump"]:
        instruments.append(Dump(Path(request["dump"]) / chosen.name.replace("/", "-")))
    if request["verify_each"]:
        instruments.append(Verification([one for one in sets if not one.heavy]))
        origin = training_origin(plan.spec, base)
        if origin is not None:
            instruments.append(StepVerification(origin))
    instruments += [Size(), Memory(), Timing()]

    def on_step(record: Step) -> None:
        send({"event": "step", "record": record.model_dump(mode="json", by_alias=True)})

    def on_bar(done: int, total: int, note: str) -> None:
        send({"event": "bar", "done": done, "total": total, "note": note})

    return CandidateRun(
        plan=chosen,
        spec=plan.spec,
        base=base,
        machine=machine,
        original=original,
        cache=Cache(Path(request["cache"])),
        instruments=instruments,
        sets=sets,
        on_start=lambda step: send({"event": "doing", "what": f"step '{step}'", "step": step}),
        on_step=on_step,
        on_progress=lambda message: send({"event": "progress", "message": message}),
        on_bar=on_bar,
        verify_each=request["verify_each"],
    )


def _find(planned: Sequence[CandidatePlan], name: str, variant: str) -> CandidatePlan:
    return next(one for one in planned if one.name == name and one.variant == variant)


def serve_inspection(requests: Iterator[dict[str, Any]], send: Send) -> None:
    """Worker function: look at the original, in a process of its own like everything else.

    The record is stored under a key that a later build computes without loading the model.
    """
    for request in requests:
        send({"event": "doing", "what": "looking at the original model"})
        base = Path(request["base"])
        spec = load_spec_data(request["spec"], base).spec
        assert spec is not None  # the parent has checked it

        def write(folder: Path, spec: Spec = spec, base: Path = base) -> None:
            examine(spec, base, folder)

        entry = Cache(Path(request["cache"])).put(request["key"], {}, write)
        send({"event": "done", "folder": str(entry.folder)})
