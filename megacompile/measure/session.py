"""All engines and baselines in their workers, raced at every benchmark point."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from megacompile.errors import MegacompileError
from megacompile.measure.rounds import EngineTimes, Schedule, race
from megacompile.system import Worker, thread_environment

WORKER = "megacompile.measure.worker:serve"
AGAIN = " (again)"


@dataclass(frozen=True)
class Contestant:
    """What a worker is asked to load. `backend` is a backend's name, eager, torch.compile, or
    LAST_FORM: the ONNX file in `folder`, run on this CPU."""

    name: str
    backend: str
    options: Mapping[str, Any] = field(default_factory=dict)
    folder: str | None = None
    confirm: bool = False


@dataclass
class Measured:
    """What came out for one contestant; `error` took it out of the race."""

    contestant: Contestant
    loaded: dict[str, Any] = field(default_factory=dict)
    times: list[EngineTimes] = field(default_factory=list)
    memory: list[float | None] = field(default_factory=list)
    metrics: dict[str, dict[str, Any]] = field(default_factory=dict)
    error: MegacompileError | None = None


class _Proxy:
    """A worker as the race sees it."""

    def __init__(self, worker: Worker, dims: Mapping[str, int]) -> None:
        self.worker, self.dims = worker, dict(dims)
        self.name = worker.name

    def warm_up(self) -> None:
        self.worker.ask({"operation": "point", "dims": self.dims})

    def time_block(self, iterations: int) -> list[float]:
        answer = self.worker.ask({"operation": "time", "iterations": iterations})
        latencies: list[float] = answer["latencies"]
        return latencies


class Session:
    """Workers that stay alive from loading to the last point; a context manager.

    `common` is what every `load` request carries: spec, base, machine, original.
    """

    def __init__(
        self,
        common: dict[str, Any],
        logs: Path,
        threads: int,
        say: Callable[[str], None],
        function: str = WORKER,
    ) -> None:
        self.common, self.logs, self.threads, self.say = common, logs, threads, say
        self.function = function
        self.workers: dict[str, Worker] = {}
        self.measured: dict[str, Measured] = {}

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *exc: object) -> None:
        for worker in self.workers.values():
            worker.close()

    def load(self, contestant: Contestant) -> Measured:
        """Start a worker and load; a failure is kept with the contestant."""
        measured = self.measured[contestant.name] = Measured(contestant)
        self.say(f"loading {contestant.name}")
        log = self.logs / (contestant.name.replace("/", "-") + ".log")
        worker = Worker(contestant.name, self.function, log, thread_environment(self.threads))
        self.workers[contestant.name] = worker
        request = {
            "operation": "load",
            **self.common,
            "backend": contestant.backend,
            "options": dict(contestant.options),
            "folder": contestant.folder,
            "confirm": contestant.confirm,
        }
        try:
            measured.loaded = worker.ask(request)
        except MegacompileError as error:
            self._drop(measured, error)
        return measured

    def ask(
        self, name: str, message: dict[str, Any], listen: Callable[[dict[str, Any]], None]
    ) -> dict[str, Any]:
        """Anything else that the worker function knows; nothing if the contestant is out.
        `listen` gets the events on the way."""
        measured = self.measured[name]
        if measured.error is not None:
            return {}
        worker, last = self.workers[name], dict[str, Any]()
        try:
            worker.request(message)
            for last in worker.events():
                listen(last)
        except MegacompileError as error:
            self._drop(measured, error)
            return {}
        return last

    def evaluate(self, name: str) -> None:
        """Run the user's metric on one engine."""
        measured = self.measured[name]
        if measured.error is not None:
            return
        self.say(f"evaluating {name}")
        try:
            measured.metrics = self.workers[name].ask({"operation": "evaluate"})["metrics"]
        except MegacompileError as error:
            self._drop(measured, error)

    def verify(self, name: str, effect: str, dtype: str, samples: str) -> dict[str, Any] | None:
        """Hold an engine of an unfinished bundle to its promise; its answers to the first stored
        set are written to `samples`. None if it failed: the contestant has the error."""
        measured = self.measured[name]
        if measured.error is not None:
            return None
        request = {"operation": "verify", "effect": effect, "dtype": dtype, "samples": samples}
        try:
            answer = self.workers[name].ask(request)
        except MegacompileError as error:
            self._drop(measured, error)
            return None
        found: dict[str, Any] = answer["error_record"]
        return found

    def count(self, name: str, dims: Mapping[str, int]) -> dict[str, Any]:
        """Operations and bytes of the original at one point, counted by a worker that is there."""
        if self.measured[name].error is not None:
            return {}
        return self.workers[name].ask({"operation": "count", "dims": dict(dims)})

    def race(self, dims: Mapping[str, int], seconds: float, seed: int) -> None:
        """Time all that still run at one point, the first contestant as the baseline."""
        running = [m for m in self.measured.values() if m.error is None]
        shown = ", ".join(f"{n}={s}" for n, s in dims.items()) or "the one size"
        self.say(f"racing {len(running)} engines at {shown}")
        proxies = [_Proxy(self.workers[m.contestant.name], dims) for m in running]
        found = race(proxies, Schedule(time_limit_s=seconds), seed) if proxies else None
        for measured in running:
            assert found is not None
            times = found.times[measured.contestant.name]
            measured.times.append(times)
            if times.error is not None:
                error = times.error
                if not isinstance(error, MegacompileError):
                    error = MegacompileError(what=f"timing fails: {error}", audience="megacompile")
                self._drop(measured, error)
                continue
            answer = self.workers[measured.contestant.name].ask({"operation": "memory"})
            measured.memory.append(answer["peak_memory_mb"])

    def _drop(self, measured: Measured, error: MegacompileError) -> None:
        measured.error = error
        worker = self.workers.pop(measured.contestant.name, None)
        if worker is not None:
            worker.close()
