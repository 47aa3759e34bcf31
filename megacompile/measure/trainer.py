"""One training step, plain or optimised, in a process of its own, measured on request."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from megacompile.backendbase import Machine
from megacompile.forms import Eager, Training, quiet
from megacompile.instruments.memory import peak_mb, reset_peak
from megacompile.original import Original
from megacompile.process import Send
from megacompile.source import fingerprint, load_original
from megacompile.spec.load import load_spec_data

WARM_STEPS = 2
KEEP_SECONDS = 20.0  # between two checkpoints of a run


def serve(requests: Iterator[dict[str, Any]], send: Send) -> None:
    """Worker function: `load` first, then `point`, `time`, `memory` (what a race asks), and
    `figures`, `operators`, `largest`, `curve`."""
    worker: _Trainer | None = None
    for request in requests:
        operation = request["operation"]
        if operation == "load":
            send({"event": "doing", "what": "loading"})
            worker = _Trainer(request, send)
            answer = worker.loaded
        else:
            assert worker is not None
            if operation != "time":
                send({"event": "doing", "what": operation})
            answer = getattr(worker, operation)(request)
        send({"event": "done", **answer})


class _Trainer:
    def __init__(self, request: dict[str, Any], send: Send) -> None:
        import torch

        from megacompile.training.batches import Batches
        from megacompile.training.inspection import plain_form

        self.send = send
        start = time.perf_counter()
        base = Path(request["base"])
        spec = load_spec_data(request["spec"], base).spec
        assert spec is not None  # the parent has checked it
        assert spec.train is not None
        machine = Machine(**{**request["machine"], "isa": tuple(request["machine"]["isa"])})
        torch.set_num_threads(machine.threads)
        signature = Original(**request["original"]).signature(spec)
        self.loaded: dict[str, Any] = {}
        if request["folder"] is None:
            form = load_original(spec, base, signature)
            assert isinstance(form, Eager)
            if request.get("confirm"):
                self.loaded["fingerprint"] = fingerprint(form)
            self.form = plain_form(form, spec, base)
        else:
            self.form = Training.load(Path(request["folder"]), signature)
        self.spec, self.train, self.base, self.device = spec, spec.train, base, machine.device
        self.batches = Batches(self.train, base, spec.seed)
        self.step = self.form.step(device=self.device)
        self.loaded["load_seconds"] = round(time.perf_counter() - start, 3)

    def point(self, request: dict[str, Any]) -> dict[str, Any]:
        """Fetch a batch and warm up: optimizer state and compiled code are there afterwards."""
        self.batch = next(iter(self.batches))
        with quiet():
            for _ in range(WARM_STEPS):
                self.step.step(self.batch)
        reset_peak()
        return {}

    def time(self, request: dict[str, Any]) -> dict[str, Any]:
        """Milliseconds of whole steps; the batch is in memory."""
        taken = []
        for _ in range(request["iterations"]):
            start = time.perf_counter_ns()
            self.step.step(self.batch)
            self._synchronise()
            taken.append((time.perf_counter_ns() - start) / 1e6)
        return {"latencies": taken}

    def memory(self, request: dict[str, Any]) -> dict[str, Any]:
        return {"peak_memory_mb": peak_mb()}

    def figures(self, request: dict[str, Any]) -> dict[str, Any]:
        """Memory, operators, and what the compiler did."""
        from megacompile.training import figures

        found = figures.memory_figures(self.step, self.batch)
        found["operators"] = figures.operators(self.step, self.batch)
        if self.step.recipe.compile is not None:
            found["compile"] = figures.compile_counters()
        return found

    def largest(self, request: dict[str, Any]) -> dict[str, Any]:
        """Samples at once within a limit, found by trying."""
        from megacompile.training.batches import sized
        from megacompile.training.figures import largest_batch

        found = largest_batch(
            self.step, sized(self.train, self.base, self.spec.seed), request["limit_bytes"],
            max(1, self.train.micro_batch),
            lambda message: self.send({"event": "progress", "message": message}),
        )  # fmt: skip
        return {"largest": found}

    def curve(self, request: dict[str, Any]) -> dict[str, Any]:
        """A run of `train.steps` from the start; it goes on from its last checkpoint."""
        from megacompile.training.checkpoints import Checkpoints

        run = Checkpoints(Path(request["folder"]), request["key"])
        step = self.form.step(device=self.device)
        losses: list[float] = []
        waited = taken = 0.0
        found = run.latest()
        if found is not None:
            step.load_state_dict(found.state["step"])
            losses = list(found.state["losses"])
            waited, taken = found.state["waited"], found.state["taken"]
        first, kept = len(losses), time.monotonic()
        stream = iter(self.batches)
        for number, batch in enumerate(itertools.islice(stream, self.train.steps)):
            if number < first:
                self.batches.waited = 0.0
                continue
            start = time.perf_counter()
            losses.append(step.step(batch).loss)
            taken += time.perf_counter() - start
            self.send({"event": "progress", "done": number + 1, "total": self.train.steps,
                       "message": f"loss {losses[-1]:.4g}"})  # fmt: skip
            if time.monotonic() - kept > KEEP_SECONDS and number + 1 < self.train.steps:
                state = {"step": step.state_dict(), "losses": losses,
                         "waited": waited + self.batches.waited, "taken": taken}  # fmt: skip
                run.save(number + 1, state)
                kept = time.monotonic()
        waited += self.batches.waited
        run.clear()
        return {"losses": losses, "waiting": waited / max(waited + taken, 1e-9),
                "skipped": step.skipped, "note": found.note if found else None,
                "continued": first}  # fmt: skip

    def _synchronise(self) -> None:
        if self.device != "cpu":
            import torch

            torch.cuda.synchronize()
