"""AOTInductor: torch's compiler ahead of time, into one package of native code."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from megacompile.engines.torchrunner import TorchRunner, moved, needs_cpu_kernels, torch_on
from megacompile.errors import BackendError
from megacompile.models import Exported, Signature, quiet, register_quantized_operators
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
from megacompile.system import cpu_isa

PACKAGE = "model.pt2"


class AOTInductor(Backend):
    name: ClassVar[str] = "aotinductor"
    accepts: ClassVar[tuple[str, ...]] = ("Exported",)
    libraries: ClassVar[tuple[str, ...]] = ("torch",)

    freezing: bool = Field(
        True, description="weights become constants that are packed for this CPU's kernels"
    )
    max_autotune: bool = Field(
        False, description="try several kernels for each matrix product; compiles much longer"
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
                "AOTInductor needs a C++ compiler, and none is on the PATH",
                "apt-get install g++, or use onnxruntime or openvino",
            )
        return wider_than_target(target, "AOTInductor")

    def compile(
        self,
        model: Exported,
        target: Machine,
        facts: frozenset[Fact],
        out: Path,
        progress: Say = silent,
    ) -> Lowered:
        import torch
        from torch._inductor import aoti_compile_and_package

        from megacompile.engines.constant_sharing import ShareEqualConstants

        torch.set_num_threads(target.threads)
        config: dict[str, Any] = {
            "freezing": self.freezing,
            "max_autotune": self.max_autotune,
            "post_grad_custom_pre_pass": ShareEqualConstants(),
        }
        try:
            with quiet(), torch.no_grad():
                program = moved(model.program, target.device)
                package = str(out / PACKAGE)
                aoti_compile_and_package(program, package_path=package, inductor_configs=config)
        except Exception as error:  # inductor raises whatever its passes raise
            lines = [line for line in str(error).splitlines() if line.strip()]
            raise BackendError(
                what="AOTInductor can't compile the program",
                cause=f"{type(error).__name__}: {lines[0] if lines else ''}",
                remedy="use another backend for this variant",
            ) from error
        needs = target.isa if target.device == "cpu" else ()
        return Lowered(precision_of(facts), needs, emulated=emulates(facts, target))

    def load(self, out: Path, target: Machine, signature: Signature) -> Runner:
        import torch
        from torch._inductor import aoti_load_package

        register_quantized_operators()
        torch.set_num_threads(target.threads)
        with quiet():
            package = aoti_load_package(str(out / PACKAGE))
        return TorchRunner(package, target.threads, signature, target.device)


def emulates(facts: frozenset[Fact], target: Machine) -> bool:
    """Whether a 16-bit float is converted to float32 and back around each operation here."""
    if target.device == "cuda":
        return False
    if Fact.BFLOAT16 in facts:
        return not {"avx512_bf16", "amx_bf16"} & set(target.isa)
    return Fact.FLOAT16 in facts and not {"avx512_fp16", "amx_fp16"} & set(target.isa)


def wider_than_target(target: Machine, what: str) -> Availability:
    """Unavailable if native code for this host would need more than the target has."""
    extra = [name for name in cpu_isa() if name not in target.isa]
    if extra:
        return Availability(
            f"{what} compiles for this host, whose instruction sets go beyond target.isa "
            f"({', '.join(extra)})",
            "build on the target machine, or use onnxruntime or openvino, which choose when "
            "they load",
        )
    return Availability()
