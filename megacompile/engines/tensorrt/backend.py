"""TensorRT and TensorRT-RTX: strongly typed engines, one per architecture, in one folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from megacompile.engines.tensorrt import flavours, running
from megacompile.engines.tensorrt.building import EngineBuilder, Settings
from megacompile.engines.tensorrt.flavours import RTX, Flavour
from megacompile.engines.tensorrt.parsing import Log, unsupported
from megacompile.errors import BackendError
from megacompile.models import Onnx, Signature
from megacompile.plan import (
    Availability,
    Backend,
    Fact,
    Lowered,
    Machine,
    Refusal,
    Runner,
    Say,
    Traits,
    precision_of,
    silent,
)
from megacompile.system import local_archs

RECORD = "tensorrt.json"
MODEL = "model.onnx"


class TensorRT(Backend):
    """One engine file per architecture beside the ONNX file they were made from."""

    name: ClassVar[str] = "tensorrt"
    accepts: ClassVar[tuple[str, ...]] = ("Onnx",)
    libraries: ClassVar[tuple[str, ...]] = tuple(
        name for one in flavours.FLAVOURS.values() for name in flavours.loaded_from(one)
    )

    flavour: Literal["auto", "tensorrt-rtx", "tensorrt"] = Field(
        "auto",
        description="tensorrt-rtx builds for other GPUs than this machine's; auto: the one "
        "that is installed",
    )
    workspace_mb: float | None = Field(
        None, gt=0, description="largest scratch memory of one operator on the GPU, in 10^6 bytes"
    )
    optimization_level: int | None = Field(
        None, ge=0, le=5, description="how long the builder searches, 0 to 5; default: TensorRT's"
    )
    timing_cache: bool | None = Field(
        None,
        description="keep kernel timings for the next build; default: yes for tensorrt, "
        "tensorrt-rtx takes none",
    )
    runtime: Literal["engine", "onnxruntime"] = Field(
        "engine",
        description="engine: TensorRT's own runtime; onnxruntime: its TensorRT-RTX "
        "execution provider on the ONNX file",
    )
    cuda_graph: bool = Field(
        True, description="replay one recorded CUDA graph where all sizes are fixed"
    )

    def traits(self) -> Traits:
        # The parser follows the standard up to operator set 22 or so; 20 has all we write.
        return Traits(backend=self.name, opset=20, symmetric=True, dynamic_ranges=False)

    def availability(self, target: Machine) -> Availability:
        flavour = flavours.choose(self.flavour)
        reason = flavours.missing(flavour)
        if reason is not None:
            return Availability(reason, flavour.install)
        if not flavour.cross_builds and target.absent():
            return Availability(
                f"{flavour.name} builds for the GPU it runs on, and {target.absent()}",
                f"use flavour tensorrt-rtx ({RTX.install}), or build on the target",
            )
        return Availability()

    def refusal(self, facts: frozenset[Fact], target: Machine) -> tuple[str, str] | None:
        if target.device != "cuda":
            return "TensorRT runs on NVIDIA GPUs", "write `target: {device: cuda}`"
        flavour = flavours.choose(self.flavour)
        known = target.arch if flavour.archs is None else flavour.archs
        strange = next((arch for arch in target.arch if arch not in known), None)
        if strange is not None:
            return (
                f"{flavour.name} has no kernels for {strange}",
                f"leave it out of target.arch ({', '.join(known)} are known)"
                ", or use flavour tensorrt on that machine",
            )
        if flavour is RTX and self.timing_cache:
            return (
                "tensorrt-rtx takes no timing cache: it chooses kernels on the target",
                "leave timing_cache out",
            )
        if flavour is not RTX and self.runtime == "onnxruntime":
            return (
                "runtime onnxruntime is TensorRT-RTX's execution provider",
                "use flavour tensorrt-rtx, or runtime: engine",
            )
        return _turing(facts, target)

    def compile(
        self,
        model: Onnx,
        target: Machine,
        facts: frozenset[Fact],
        out: Path,
        progress: Say = silent,
    ) -> Lowered:
        model.save(out)
        archs = self.build_engines(out, target, model.signature, progress)
        note = f"engines for {', '.join(archs)} by {self._version()}"
        return Lowered(precision_of(facts), notes=[note])

    def build_engines(
        self, out: Path, target: Machine, signature: Signature, progress: Say
    ) -> list[str]:
        """Build from the ONNX file in a folder; returns the architectures that have an engine.

        Raises:
            BackendError: TensorRT is missing, or refuses the model.
        """
        flavour = flavours.choose(self.flavour)
        archs = list(target.arch)
        if not flavour.cross_builds:
            # TensorRT itself builds for the GPU it sees, whatever else the spec names.
            archs = [arch for arch in archs if arch in local_archs()]
        builder = EngineBuilder(flavour, out / MODEL, signature)
        for arch in archs:
            engine = builder.build(arch, self._settings(flavour), progress)
            (out / f"{arch}.engine").write_bytes(engine)
        record = {"flavour": flavour.name, "version": self._version(), "archs": archs}
        (out / RECORD).write_text(json.dumps(record, indent=2) + "\n")
        return archs

    def load(self, out: Path, target: Machine, signature: Signature) -> Runner:
        reason = target.absent()
        if reason is not None:
            raise BackendError(
                what="the engine can't run on this machine",
                where=str(out),
                cause=reason,
                remedy="load it on the target machine",
            )
        if self.runtime == "onnxruntime":
            return running.open_provider(out / MODEL, signature)
        record = json.loads((out / RECORD).read_text())
        return running.open_engine(out, record, signature, self.cuda_graph)

    def stale(self, out: Path, target: Machine) -> str | None:
        record = json.loads((out / RECORD).read_text())
        if not set(record["archs"]) & set(target.arch):
            return f"it is for {', '.join(record['archs'])}, not {', '.join(target.arch)}"
        if record["version"] != self._version():
            return f"it was built by {record['version']}, not {self._version()}"
        return running.refused(out, record) if self.runtime == "engine" else None

    def rebuild(self, out: Path, target: Machine, signature: Signature, progress: Say) -> None:
        for engine in out.glob("*.engine"):
            engine.unlink()
        self.build_engines(out, target, signature, progress)

    def check_operators(self, model: Onnx) -> list[Refusal]:
        """Everything in a model that TensorRT's parser does not take."""
        api = flavours.load(flavours.choose(self.flavour).name)
        log = Log(api)
        return unsupported(api, log, api.Builder(log.logger), model.path)

    def _settings(self, flavour: Flavour) -> Settings:
        timing = flavour is not RTX if self.timing_cache is None else self.timing_cache
        return Settings(self.workspace_mb, self.optimization_level, timing)

    def _version(self) -> str:
        flavour = flavours.choose(self.flavour)
        return f"{flavour.name} {flavours.installed_version(flavour)}"


def _turing(facts: frozenset[Fact], target: Machine) -> tuple[str, str] | None:
    """sm_75 multiplies matrices in float16 and int8 only, measured with TensorRT-RTX 1.7."""
    if "sm_75" not in target.arch or facts & {Fact.FLOAT16, Fact.QUANTIZED}:
        return None
    dtype = "bfloat16" if Fact.BFLOAT16 in facts else "float32"
    return (
        f"TensorRT has no {dtype} matrix product for sm_75",
        "add `cast: {dtype: float16}` to this variant, or leave sm_75 out of target.arch",
    )
