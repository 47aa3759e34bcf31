"""The trace of a form's step, in as many processes as its recipe asks for."""

from __future__ import annotations

from megacompile.forms import Training
from megacompile.training.batches import Batches
from megacompile.training.comparison import Trace, trace
from megacompile.training.context import Origin


def trace_form(form: Training, steps: int, data: Origin, device: str = "cpu") -> Trace:
    """Take steps on a copy of the form's module, with the batches of `data`: a bundle carries
    none of its own."""
    step = form.step(device=device, reproducible=True)
    return trace(step, Batches(data.train, data.base, data.seed), steps)
