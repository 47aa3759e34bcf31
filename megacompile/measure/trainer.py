"""One training step, plain or optimised, in a process of its own, measured on request."""

from __future__ import annotations

import itertools
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from megacompile.engines import CompiledModel
from megacompile.measure.evaluation import evaluate
from megacompile.measure.instruments.memory import peak_mb, reset_peak
from megacompile.measure.original import Original
from megacompile.measure.serving import answer_all
from megacompile.measure.training.waits import Waits
from megacompile.models import Eager, fingerprint, load_original, quiet
from megacompile.plan import Machine
from megacompile.spec import load_spec_data
from megacompile.system import Send
from megacompile.training import Training

if TYPE_CHECKING:
    from megacompile.training.checkpoints import Checkpoints, Found
    from megacompile.training.step import TrainingStep

WARM_STEPS = 2
HANDLER = "megacompile.measure.trainer:in_crew"
KEEP_SECONDS = 20.0  # between two checkpoints of a run


def serve(requests: Iterator[dict[str, Any]], send: Send) -> None:
    """Worker function: `load` first, then `point`, `time`, `memory` (what a race asks), and
    `figures`, `largest`, `curve`."""
    answer_all(requests, send, lambda request: _make(request, send))


def _make(request: dict[str, Any], send: Send) -> _Trainer | _Crewed:
    """One step here, or a crew's if the stored recipe asks for several processes."""
    from megacompile.training import Recipe, read_record

    if request["folder"] is not None:
        recipe = Recipe.model_validate(read_record(Path(request["folder"]))["recipe"])
        if recipe.distribute is not None and recipe.distribute.processes > 1:
            return _Crewed(request, send, recipe.distribute.processes)
    return _Trainer(request, send)


def in_crew(request: dict[str, Any]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """A crew's handler: a trainer in each process."""
    trainer = _Trainer(request, lambda event: None)

    def handle(message: dict[str, Any]) -> dict[str, Any]:
        if message["operation"] == "load":
            return trainer.loaded
        answer: dict[str, Any] = getattr(trainer, message["operation"])(message)
        return answer

    return handle


class _Crewed:
    """A step over several processes, asked as one: times are the slowest process's, memory the
    largest."""

    def __init__(self, request: dict[str, Any], send: Send, processes: int) -> None:
        from megacompile.measure.training.crew import Crew

        self.send = send
        self.crew = Crew(processes, request["machine"]["threads"], HANDLER, request)
        self.loaded = self.crew.ask({"operation": "load"})[0]

    def __getattr__(self, operation: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
        return lambda request: self.crew.ask(request)[0]

    def time(self, request: dict[str, Any]) -> dict[str, Any]:
        answers = [answer["latencies"] for answer in self.crew.ask(request)]
        return {"latencies": [max(each) for each in zip(*answers, strict=True)]}

    def memory(self, request: dict[str, Any]) -> dict[str, Any]:
        known = [a["peak_memory_mb"] for a in self.crew.ask(request) if a["peak_memory_mb"]]
        return {"peak_memory_mb": max(known, default=None)}

    def figures(self, request: dict[str, Any]) -> dict[str, Any]:
        answers = self.crew.ask(request)
        worst = max(answers, key=lambda answer: answer["peak_memory_mb"])
        lasting = ("parameters", "gradients", "optimizer")
        by_rank = [sum(a["state_mb"].get(part, 0.0) for part in lasting) for a in answers]
        return {**worst, "state_mb_by_rank": by_rank}

    def curve(self, request: dict[str, Any]) -> dict[str, Any]:
        answer = self.crew.ask(request)[0]
        shutil.rmtree(request["folder"], ignore_errors=True)  # each process has cleared its own
        return answer

    def largest(self, request: dict[str, Any]) -> dict[str, Any]:
        """Not searched: each process would have to decide alike."""
        return {}


class _Trainer:
    def __init__(self, request: dict[str, Any], send: Send) -> None:
        import torch

        from megacompile.measure.training.inspection import plain_form
        from megacompile.training.batches import Batches

        self.send = send
        start = time.perf_counter()
        base = Path(request["base"])
        spec = load_spec_data(request["spec"], base).spec
        assert spec is not None  # the parent has checked it
        assert spec.train is not None
        machine = Machine.from_dict(request["machine"])
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
        self.batches = Batches(self.train, base, spec.seed, device=machine.device)
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
        first = self.batch.get(next(iter(self.spec.inputs)))
        if first is not None and first.dim() == 2 and not first.is_floating_point():
            found["tokens"] = first.numel()
        if self.step.recipe.compile is not None:
            found["compile"] = figures.compile_counters()
        return found

    def largest(self, request: dict[str, Any]) -> dict[str, Any]:
        """Samples at once within a limit, found by trying."""
        from megacompile.training.batches import sized
        from megacompile.training.figures import largest_batch

        def say(message: str) -> None:
            self.send({"event": "progress", "message": message})

        batch_of = sized(self.train, self.base, self.spec.seed)
        start = max(1, self.train.micro_batch)
        found = largest_batch(self.step, batch_of, request["limit_bytes"], start, say)
        return {"largest": found}

    def curve(self, request: dict[str, Any]) -> dict[str, Any]:
        """A run of `train.steps` from the start; it goes on from its last checkpoint."""
        from megacompile.training import distribution
        from megacompile.training.checkpoints import Checkpoints

        run = Checkpoints(distribution.own_folder(Path(request["folder"])), request["key"])
        step = self.form.step(device=self.device)
        losses: list[float] = []
        waits = Waits()
        found = _agreed(run)
        if found is not None:
            step.load_state_dict(found.state["step"])
            losses = list(found.state["losses"])
            waits = Waits(**found.state["waits"])
        first, kept = len(losses), time.monotonic()
        stream = iter(self.batches)
        for number, batch in enumerate(itertools.islice(stream, self.train.steps)):
            if number < first:
                self.batches.waited = 0.0
                continue
            start = time.perf_counter()
            losses.append(step.step(batch).loss)
            waits.add(self.batches, time.perf_counter() - start, starting=number == first)
            progress = {"done": number + 1, "total": self.train.steps}
            self.send({"event": "progress", **progress, "message": f"loss {losses[-1]:.4g}"})
            late = time.monotonic() - kept > request.get("keep_seconds", KEEP_SECONDS)
            if distribution.largest(late) and number + 1 < self.train.steps:
                state = {"step": step.state_dict(), "losses": losses, "waits": asdict(waits)}
                run.save(number + 1, state)
                kept = time.monotonic()
        metrics = self._evaluate(step)
        run.clear()
        return {
            "metrics": metrics,
            "losses": losses,
            **waits.figures(),
            "remedy": self.batches.remedy(),
            "skipped": step.skipped,
            "note": found.note if found else None,
            "continued": first,
        }

    def _evaluate(self, step: TrainingStep) -> dict[str, Any]:
        """The user's metric on the model that this run has trained."""
        source = self.spec.data.evaluation
        if source is None:
            return {}
        self.send({"event": "doing", "what": "evaluating"})
        trained = Eager(step.module.eval(), self.form.signature, self.form.binding)
        return evaluate(source, self.base, CompiledModel(trained.run, self.form.signature))

    def _synchronise(self) -> None:
        if self.device != "cpu":
            import torch

            torch.cuda.synchronize()


def _agreed(run: Checkpoints) -> Found | None:
    """The last checkpoint that every process has: one may have been stopped before it wrote."""
    from megacompile.training import distribution

    found = run.latest()
    while True:
        mine = found.number if found else 0
        least = distribution.smallest(mine)
        if least == distribution.largest(mine):
            return found
        found = run.latest(most=least) if least else None
