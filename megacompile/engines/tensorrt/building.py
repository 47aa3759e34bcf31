"""An ONNX file into one engine for one architecture."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from megacompile.engines.profiles import profile_of
from megacompile.engines.tensorrt import flavours
from megacompile.engines.tensorrt.flavours import Flavour
from megacompile.engines.tensorrt.parsing import (
    Log,
    blamed,
    clean,
    parse,
    refuse,
    remedy_of,
    strongly_typed,
)
from megacompile.errors import BackendError
from megacompile.models import Signature
from megacompile.system import default_root

# A build has thousands of steps, most of them over at once: one word a second is enough.
SECONDS_BETWEEN = 1.0


@dataclass(frozen=True)
class Settings:
    """What the builder is told. `workspace_mb` is in 10^6 bytes; None leaves TensorRT's default."""

    workspace_mb: float | None
    optimization_level: int | None
    timing_cache: bool


class EngineBuilder:
    """One parsed network, from which engines for several architectures are built.

    Raises:
        BackendError: the parser refuses the model; the first node is named with its module.
    """

    def __init__(self, flavour: Flavour, path: Path, signature: Signature) -> None:
        self.flavour, self.path, self.signature = flavour, path, signature
        self.api = flavours.load(flavour.name)
        self.log = Log(self.api)
        self.builder = self.api.Builder(self.log.logger)
        self.network = self.builder.create_network(strongly_typed(self.api))
        refusals = parse(self.api, self.network, self.log, path)
        if refusals:
            raise refuse(refusals, flavour.name)
        self._set_sizes()

    def build(self, arch: str, settings: Settings, progress: Callable[[str], None]) -> bytes:
        """The serialized engine for one architecture.

        Raises:
            BackendError: the builder fails; its own last message is the cause.
        """
        config = self.builder.create_builder_config()
        self._profile(config)
        if self.flavour.cross_builds:
            config.num_compute_capabilities = 1
            config.set_compute_capability(flavours.compute_capability(self.api, arch), 0)
        if settings.workspace_mb is not None:
            pool = self.api.MemoryPoolType.WORKSPACE
            config.set_memory_pool_limit(pool, int(settings.workspace_mb * 1e6))
        if settings.optimization_level is not None:
            config.builder_optimization_level = settings.optimization_level
        config.progress_monitor = monitor(self.api, lambda text: progress(f"{arch}: {text}"))
        store = self._timing_cache(config, arch) if settings.timing_cache else None
        self.log.lines.clear()
        engine = self.builder.build_serialized_network(self.network, config)
        if engine is None:
            raise self._failure(arch)
        if store is not None:
            store.parent.mkdir(parents=True, exist_ok=True)
            store.write_bytes(bytes(config.get_timing_cache().serialize()))
        return bytes(engine)

    def _set_sizes(self) -> None:
        """Give the network's inputs the spec's sizes: what is fixed there, and which are one dim.

        Someone else's file may call two different sizes by one name, which TensorRT would hold
        to be equal.
        """
        for index in range(self.network.num_inputs):
            given = self.network.get_input(index)
            if -1 not in tuple(given.shape):
                continue
            sizes = self.signature.tensors[given.name].shape
            fixed = [self._fixed(size) for size in sizes]
            given.shape = tuple(-1 if size is None else size for size in fixed)
            for axis, size in enumerate(sizes):
                given.set_dimension_name(axis, size if fixed[axis] is None else "")

    def _fixed(self, size: str | int) -> int | None:
        """A size of the spec as a number, or None for a dim that has a range."""
        if isinstance(size, int):
            return size
        dim = self.signature.dims[size]
        return dim.min if dim.fixed else None

    def _profile(self, config: Any) -> None:
        """One optimization profile: the spec's smallest, typical and largest sizes."""
        profile = self.builder.create_optimization_profile()
        shapes = profile_of(self.signature)
        dynamic = 0
        for index in range(self.network.num_inputs):
            given = self.network.get_input(index)
            if -1 not in tuple(given.shape):
                continue
            profile.set_shape(given.name, *shapes[given.name])
            dynamic += 1
        if dynamic:
            config.add_optimization_profile(profile)

    def _timing_cache(self, config: Any, arch: str) -> Path:
        """Measured kernel times of earlier builds, per version and architecture."""
        name = f"{self.api.__version__}-{arch}.timing"
        store = default_root() / "tensorrt" / name
        content = store.read_bytes() if store.is_file() else b""
        config.set_timing_cache(config.create_timing_cache(content), False)
        return store

    def _failure(self, arch: str) -> BackendError:
        reason = clean(self.log.lines[-1]) if self.log.lines else "no reason was given"
        where = blamed(self.path, reason)
        return BackendError(
            what=f"{self.flavour.name} can't build an engine for {arch}",
            where=where,
            cause=reason,
            remedy=remedy_of(reason),
        )


def monitor(api: Any, say: Callable[[str], None]) -> Any:
    """TensorRT's own progress, thinned out, as sentences."""

    class Monitor(api.IProgressMonitor):
        def __init__(self) -> None:
            api.IProgressMonitor.__init__(self)
            self.steps: dict[str, int] = {}
            self.said = time.monotonic()

        def phase_start(self, name: str, parent: str | None, steps: int) -> None:
            self.steps[name] = steps

        def phase_finish(self, name: str) -> None:
            self.steps.pop(name, None)

        def step_complete(self, name: str, step: int) -> bool:
            now = time.monotonic()
            if now - self.said >= SECONDS_BETWEEN:
                self.said = now
                say(f"{name.lower()}, {step + 1} of {self.steps.get(name, '?')}")
            return True

    say("building the engine")
    return Monitor()
