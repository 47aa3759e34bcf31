"""The trace of a form's step, in as many processes as its recipe asks for."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from megacompile.measure.training.comparison import Trace, trace
from megacompile.measure.training.crew import Crew
from megacompile.models import Signature
from megacompile.spec import Train
from megacompile.training import Origin, Training, distribution
from megacompile.training.batches import Batches

HANDLER = "megacompile.measure.training.tracing:tracer"


def trace_form(
    form: Training, steps: int, data: Origin, device: str = "cpu", dropout: bool = True
) -> Trace:
    """Take steps on a copy of the form's module, with the batches of `data`: a bundle carries
    none of its own. `dropout` False turns dropout off.

    Raises:
        MegacompileError: a process failed.
    """
    choice = form.recipe.distribute
    if choice is not None and choice.processes > 1 and not distribution.running():
        return _trace_in_crew(form, steps, data, choice.processes, device)
    if form.recipe.compile is not None:
        torch._dynamo.reset()  # what is compiled by now may draw other random numbers
    step = form.step(device=device, reproducible=True)
    if not dropout:
        turn_off_dropout(step.module)
    return trace(step, Batches(data.train, data.base, data.seed), steps)


def turn_off_dropout(module: torch.nn.Module) -> None:
    """Processes drop other values than one process does: they are compared without dropout."""
    for one in module.modules():
        if isinstance(one, torch.nn.modules.dropout._DropoutNd):
            one.p = 0.0
        elif isinstance(getattr(one, "dropout", None), float):
            one.dropout = 0.0  # type: ignore[assignment]


def _trace_in_crew(form: Training, steps: int, data: Origin, processes: int, device: str) -> Trace:
    with tempfile.TemporaryDirectory(prefix="megacompile-trace-") as name:
        folder = Path(name)
        (folder / "form").mkdir()
        form.save(folder / "form")
        request = {
            "form": str(folder / "form"),
            "signature": form.signature.to_dict(),
            "steps": steps,
            "device": device,
            "base": str(data.base),
            "seed": data.seed,
            "model": data.model,
            "train": data.train.model_dump(mode="json"),
            "out": str(folder / "trace.pt"),
        }
        with Crew(processes, torch.get_num_threads(), HANDLER, request) as crew:
            crew.ask({})
        values = torch.load(folder / "trace.pt", weights_only=True)
        return Trace(**values)


def tracer(request: dict[str, Any]) -> Callable[[Any], dict[str, Any]]:
    """A crew's handler: one trace, written by the first process."""

    def handle(message: Any) -> dict[str, Any]:
        form = Training.load(Path(request["form"]), Signature.from_dict(request["signature"]))
        train = Train.model_validate(request["train"])
        data = Origin(request["model"], Path(request["base"]), train, request["seed"])
        found = trace_form(form, request["steps"], data, request["device"], dropout=False)
        if torch.distributed.get_rank() == 0:
            torch.save(vars(found), request["out"])
        return {}

    return handle
