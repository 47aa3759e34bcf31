"""OpenVINO's CPU plugin."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from megacompile.engines.onnxruntime import int8_isa
from megacompile.errors import BackendError
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

CONFIG = "openvino.json"


class OpenVINO(Backend):
    name: ClassVar[str] = "openvino"
    accepts: ClassVar[tuple[str, ...]] = ("Onnx",)
    libraries: ClassVar[tuple[str, ...]] = ("openvino",)

    inference_precision: Literal["auto", "f32", "bf16"] = Field(
        "auto", description="auto: bf16 for a model cast to bfloat16, else f32; always pinned"
    )

    def traits(self) -> Traits:
        # OpenVINO's ONNX frontend takes operator set 21, too; with ONNX Runtime's, the two share
        # their steps in the cache.
        return Traits(backend=self.name, opset=20)

    def availability(self, target: Machine) -> Availability:
        return available_with("openvino", extra="openvino", instead="onnxruntime or aotinductor")

    def refusal(self, facts: frozenset[Fact], target: Machine) -> tuple[str, str] | None:
        if target.device == "cuda":
            return "OpenVINO does not run on NVIDIA GPUs", "use tensorrt, or device: cpu"
        if Fact.FLOAT16 in facts:
            return (
                "OpenVINO computes float16 in float32 on a CPU",
                "use `cast: {dtype: bfloat16}`, or onnxruntime to see float16 emulated",
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
        import openvino as ov

        hint = self.inference_precision
        if hint == "auto":
            hint = "bf16" if Fact.BFLOAT16 in facts else "f32"
        notes = []
        if hint == "bf16" and not {"avx512_bf16", "amx_bf16"} & set(target.isa):
            notes.append("this CPU has no bfloat16 instructions: OpenVINO emulates them")
        try:
            converted = ov.convert_model(str(model.path))
            # Weights stay as the passes left them: no silent float16.
            ov.save_model(converted, str(out / "model.xml"), compress_to_fp16=False)
        except RuntimeError as error:
            lines = [line for line in str(error).splitlines() if line.strip()]
            raise BackendError(
                what="OpenVINO refuses the model",
                where=str(model.path),
                cause=lines[-1] if lines else repr(error),
            ) from error
        (out / CONFIG).write_text(json.dumps({"inference_precision": hint}))
        precision = precision_of(facts)
        if hint == "bf16" and precision == "float32":
            precision = "bfloat16"
        needs = ("avx512_bf16",) if hint == "bf16" and "avx512_bf16" in target.isa else ()
        return Lowered(precision, (*int8_isa(facts, target), *needs), notes, emulated=bool(notes))

    def load(self, out: Path, target: Machine, signature: Signature) -> Runner:
        hint = json.loads((out / CONFIG).read_text())["inference_precision"]
        return _OpenVINORunner(out / "model.xml", target.threads, hint, signature)


class _OpenVINORunner(Runner):
    def __init__(self, path: Path, threads: int, hint: Any, signature: Signature) -> None:
        from megacompile.models import open_openvino

        self.opened: Any = open_openvino(path, threads, hint)
        self.signature = signature

    def run(self, feeds: Feeds) -> Feeds:
        result: Feeds = self.opened.run(feeds, self.signature.outputs)
        return result

    def prepare(self, feeds: Feeds) -> Callable[[], Any]:
        request = self.opened.request
        known = {name: np.asarray(feeds[name], order="C") for name in self.opened.names}
        return lambda: request.infer(known, share_inputs=True, share_outputs=True)

    def close(self) -> None:
        self.opened = None
