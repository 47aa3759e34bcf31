"""ONNX Runtime: its CPU execution provider, or CUDA's."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field

from megacompile.models import Feeds, Onnx, Signature
from megacompile.plan import (
    Availability,
    Backend,
    Fact,
    Lowered,
    Machine,
    Runner,
    Say,
    Traits,
    available_with,
    precision_of,
    silent,
)

# Newest ONNX operator set by ONNX Runtime release (its own compatibility table), newest first. 21
# is left out: there QuantizeLinear names its dtype, and ONNX Runtime's optimizer changes a zero
# point's dtype without it, and then refuses the graph that it made.
OPSETS = (((1, 17), 20), ((1, 15), 19), ((1, 14), 18))
# Without these an int8 product is summed in 16 bits and may saturate: other numbers.
INT8_ISA = ("avx512_vnni", "avx_vnni", "amx_int8")


class ONNXRuntime(Backend):
    name: ClassVar[str] = "onnxruntime"
    accepts: ClassVar[tuple[str, ...]] = ("Onnx",)
    libraries: ClassVar[tuple[str, ...]] = ("onnxruntime",)

    graph_optimization: Literal["all", "extended", "basic", "none"] = Field(
        "all", description="how far ONNX Runtime rewrites the graph when it loads it"
    )

    def traits(self) -> Traits:
        try:
            installed = tuple(int(p) for p in version("onnxruntime").split(".")[:2])
        except Exception:  # noqa: BLE001 - not installed, or a version of its own kind
            installed = (1, 14)
        opset = next((opset for release, opset in OPSETS if installed >= release), 17)
        return Traits(backend=self.name, opset=opset)

    def availability(self, target: Machine) -> Availability:
        if target.device == "cuda":
            return _cuda_availability(target)
        return available_with("onnxruntime", extra="all", instead="openvino or aotinductor")

    def refusal(self, facts: frozenset[Fact], target: Machine) -> tuple[str, str] | None:
        if Fact.BFLOAT16 in facts and target.device == "cpu":
            return (
                "ONNX Runtime's CPU provider has no bfloat16 MatMul",
                "use float32 there, or openvino or aotinductor for bfloat16",
            )
        return None

    def compile(
        self,
        model: Onnx,
        target: Machine,
        facts: frozenset[Fact],
        out: Path,
        progress: Say = silent,
    ) -> Lowered:
        model.save(out)
        if target.device == "cuda":
            return Lowered(precision_of(facts))
        emulated = Fact.FLOAT16 in facts
        notes = ["float16 is computed in float32 between casts on a CPU"] if emulated else []
        return Lowered(precision_of(facts), int8_isa(facts, target), notes, emulated)

    def load(self, out: Path, target: Machine, signature: Signature) -> Runner:
        path, level = out / "model.onnx", self.graph_optimization
        return _ONNXRuntimeRunner(path, target.threads, signature, level, target.device)


def int8_isa(facts: frozenset[Fact], target: Machine) -> tuple[str, ...]:
    """The int8 instructions that this machine computed with, if the model is quantized."""
    if Fact.QUANTIZED not in facts:
        return ()
    return tuple(name for name in INT8_ISA if name in target.isa)


def _cuda_availability(target: Machine) -> Availability:
    reason = target.absent()
    if reason is not None:
        return Availability(
            f"{reason}: ONNX Runtime's CUDA provider could not be checked",
            "build on the target machine, or use tensorrt",
        )
    import onnxruntime as ort

    from megacompile.models import onnxfile

    if onnxfile.CUDA_PROVIDER not in ort.get_available_providers():
        return Availability(
            "the installed onnxruntime has no CUDA provider",
            "pip install onnxruntime-gpu in place of onnxruntime",
        )
    return Availability()


class _ONNXRuntimeRunner(Runner):
    def __init__(
        self, path: Path, threads: int, signature: Signature, optimization: str, device: str
    ) -> None:
        from megacompile.models import onnxfile

        self.opened: Any = onnxfile.open_session(path, threads, optimization, device)
        self.signature = signature

    def run(self, feeds: Feeds) -> Feeds:
        result: Feeds = self.opened.run(feeds, self.signature.outputs)
        return result

    def prepare(self, feeds: Feeds) -> Callable[[], Any]:
        session, outputs = self.opened.session, list(self.signature.outputs)
        known = {name: array for name, array in feeds.items() if name in self.opened.names}
        return lambda: session.run(outputs, known)

    def close(self) -> None:
        self.opened = None
