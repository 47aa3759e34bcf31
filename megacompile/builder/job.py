"""What all steps of a build share."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from megacompile.errors import MegacompileError
from megacompile.plan import CandidatePlan, Machine, Plan
from megacompile.report import Step
from megacompile.spec import Loaded, Spec
from megacompile.system import Cache, Environment, Listener, Worker, thread_environment


@dataclass(frozen=True)
class Options:
    """How to build; everything about what to build stands in the spec."""

    build_dir: Path = Path("build")
    report_dir: Path | None = None
    cache_dir: Path | None = None
    resume: bool = True
    dump: Path | None = None
    verify_each: bool = True


@dataclass
class Outcome:
    """What one candidate's process came to."""

    plan: CandidatePlan
    steps: list[Step] = field(default_factory=list)
    lowering: Step | None = None
    engine: dict[str, Any] | None = None
    folder: Path | None = None
    error: MegacompileError | None = None
    failed_step: str | None = None


@dataclass
class Clock:
    """Wall time by part of the build, in seconds."""

    start: float = field(default_factory=time.perf_counter)
    measuring: float = 0.0
    evaluation: float = 0.0
    hooks: float = 0.0

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Add what happens inside to a part's time."""
        start = time.perf_counter()
        try:
            yield
        finally:
            setattr(self, name, getattr(self, name) + time.perf_counter() - start)


@dataclass
class Job:
    """One build: its input, where things go, and its clock.

    `spec_data` is the spec as plain data, for workers and the report; `quantized` says that an
    ONNX source holds quantized weights already; `needs` is what one call of the original takes at
    the first benchmark point (operations, bytes), counted while it is measured.
    """

    loaded: Loaded
    plan: Plan
    options: Options
    listen: Listener
    cache: Cache
    environment: Environment
    spec_data: dict[str, Any]
    quantized: bool
    clock: Clock = field(default_factory=Clock)
    needs: dict[str, Any] = field(default_factory=dict)

    @property
    def spec(self) -> Spec:
        return self.plan.spec

    @property
    def machine(self) -> Machine:
        return self.plan.target

    @property
    def base(self) -> Path:
        return self.loaded.base

    @property
    def logs(self) -> Path:
        """Where the processes of this build write what they print."""
        return self.options.build_dir / ".logs" / self.spec.name

    def say(self, message: str) -> None:
        """One line for whoever watches."""
        self.listen("say", message=message)

    def log_of(self, name: str) -> Path:
        """The log of the process of this name."""
        return self.logs / (name.replace("/", "-").replace(" ", "-") + ".log")

    def worker(self, name: str, function: str) -> Worker:
        """A process for one step, with this build's thread budget and a log of its own."""
        log = self.log_of(name)
        log.unlink(missing_ok=True)
        return Worker(name, function, log, thread_environment(self.machine.threads))
