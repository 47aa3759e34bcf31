"""ONNX files through OpenVINO's CPU plugin, with the precision it computes in pinned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from megacompile.errors import ModelError
from megacompile.models.tensors import Feeds

Precision = Literal["f32", "bf16", "f16"]


@dataclass
class OpenVINOSession:
    """A compiled model with one request; inputs that it doesn't have are ignored."""

    compiled: Any
    request: Any
    names: frozenset[str]

    def run(self, feeds: Feeds, outputs: Sequence[str]) -> Feeds:
        """The named outputs, or all of them if none is named."""
        known = {name: np.asarray(feeds[name], order="C") for name in self.names}
        result = self.request.infer(known, share_inputs=True, share_outputs=False)
        values: Feeds = {}
        for port, value in result.items():
            for name in port.get_names():
                values[name] = value
        wanted = list(outputs) or sorted(values)
        return {name: np.array(values[name]) for name in wanted}

    def precision(self) -> str:
        """The precision that the plugin computes in, as it names it itself."""
        return str(self.compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name())


def open_openvino(
    path: Path, threads: int | None = None, precision: Precision = "f32"
) -> OpenVINOSession:
    """Compile a model (ONNX or OpenVINO IR) for this CPU.

    The precision is always pinned: left alone, OpenVINO computes in bfloat16 wherever the CPU
    has AMX or AVX512_BF16.

    Raises:
        ModelError: OpenVINO is not installed or refuses the model.
    """
    try:
        import openvino as ov
    except ImportError as error:
        raise ModelError(
            what="this step needs OpenVINO",
            cause=str(error),
            remedy="pip install 'megacompile[openvino]'",
        ) from error
    core = ov.Core()
    config: dict[str, Any] = {"INFERENCE_PRECISION_HINT": precision, "PERFORMANCE_HINT": "LATENCY"}
    if threads:
        config["INFERENCE_NUM_THREADS"] = threads
    try:
        model = core.read_model(str(path))
        compiled = core.compile_model(model, "CPU", config)
    except RuntimeError as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        raise ModelError(
            what="OpenVINO refuses the model",
            where=str(path),
            cause=lines[-1] if lines else repr(error),
        ) from error
    names = frozenset(port.get_any_name() for port in compiled.inputs)
    return OpenVINOSession(compiled, compiled.create_infer_request(), names)
