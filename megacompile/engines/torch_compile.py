"""torch.compile when the artifact is loaded, with the compiled kernels carried along."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from megacompile.engines.aotinductor import emulates
from megacompile.engines.torchrunner import TorchRunner, moved, needs_cpu_kernels, torch_on
from megacompile.errors import BackendError
from megacompile.models import Exported, Signature, examples
from megacompile.plan import (
    Availability,
    Backend,
    Fact,
    Lowered,
    Machine,
    Runner,
    Say,
    Traits,
    precision_of,
    silent,
)

KERNELS = "kernels"
# Inductor also stores whole compiled graphs, as pickles. A bundle holds no pickle, so only
# sources and libraries are carried: what is compiled again on load is Python, not C++.
CARRIED = {".so", ".cpp", ".h", ".o"}


class TorchCompile(Backend):
    name: ClassVar[str] = "torch-compile"
    accepts: ClassVar[tuple[str, ...]] = ("Exported",)
    libraries: ClassVar[tuple[str, ...]] = ("torch",)

    freezing: bool = Field(
        True, description="weights become constants that are packed for this CPU's kernels"
    )

    def traits(self) -> Traits:
        return Traits(backend=self.name, quantizer="x86-inductor")

    def refusal(self, facts: frozenset[Fact], target: Machine) -> tuple[str, str] | None:
        return needs_cpu_kernels(facts, target)

    def availability(self, target: Machine) -> Availability:
        if target.device == "cuda":
            return torch_on(target)
        if shutil.which("g++") is None and shutil.which("clang++") is None:
            return Availability(
                "torch.compile needs a C++ compiler, and none is on the PATH",
                "apt-get install g++, or use onnxruntime or openvino",
            )
        return Availability()

    def compile(
        self,
        model: Exported,
        target: Machine,
        facts: frozenset[Fact],
        out: Path,
        progress: Say = silent,
    ) -> Lowered:
        model.save(out)
        with tempfile.TemporaryDirectory() as folder:
            try:
                self._compiled(model, target, Path(folder))
            except Exception as error:  # inductor raises whatever its passes raise
                lines = [line for line in str(error).splitlines() if line.strip()]
                raise BackendError(
                    what="torch.compile fails on the program",
                    cause=f"{type(error).__name__}: {lines[0] if lines else ''}",
                    remedy="use another backend",
                ) from error
            for file in Path(folder).rglob("*"):
                if file.is_file() and file.suffix in CARRIED:
                    place = out / KERNELS / file.relative_to(folder)
                    place.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(file, place)
        return Lowered(precision_of(facts), emulated=emulates(facts, target))

    def load(self, out: Path, target: Machine, signature: Signature) -> Runner:
        folder = tempfile.mkdtemp(prefix="megacompile-kernels-")
        try:
            if (out / KERNELS).is_dir():
                shutil.copytree(out / KERNELS, folder, dirs_exist_ok=True)
            return self._compiled(Exported.load(out, signature), target, Path(folder))
        finally:
            # The libraries are mapped by now; their names are not needed any more.
            shutil.rmtree(folder, ignore_errors=True)

    def _compiled(self, model: Exported, target: Machine, folder: Path) -> TorchRunner:
        """Compile, and run once at the typical and at the odd sizes: all dims stay dynamic."""
        import torch

        torch.set_num_threads(target.threads)
        with _kernel_folder(folder), torch.no_grad():
            dynamic = None if all(d.fixed for d in model.signature.dims.values()) else True
            module = moved(model.program, target.device).module()
            call: Any = torch.compile(module, dynamic=dynamic, options={"freezing": self.freezing})
            runner = TorchRunner(call, target.threads, model.signature, target.device)
            for which in ("typical", "odd"):
                sizes = examples.sizes(model.signature, which)
                runner.run(examples.make(model.signature, sizes))
        return runner


@contextlib.contextmanager
def _kernel_folder(folder: Path) -> Iterator[None]:
    """Inductor looks for compiled kernels there; its caches of pickled graphs are off."""
    import torch._functorch.config as functorch
    import torch._inductor.config as inductor

    before = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder)
    try:
        with inductor.patch(fx_graph_cache=False), functorch.patch(enable_autograd_cache=False):
            yield
    finally:
        if before is None:
            del os.environ["TORCHINDUCTOR_CACHE_DIR"]
        else:
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = before
