"""What libraries quantize in an ONNX graph: NNCF by calibration, ONNX Runtime by each call."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx

from megacompile.errors import PassError
from megacompile.models import Feeds, onnxfile, quiet
from megacompile_passes.messages import first_line
from megacompile_passes.onnx_graphs.nodes import blamed
from megacompile_passes.precision.quantize.onnx_sites import is_attention

# A Gemm becomes a MatMul before operators are looked at.
DYNAMIC_OPERATORS = ("MatMul", "LSTM", "Attention")


def quantized_by_nncf(
    model: onnx.ModelProto,
    samples: list[Feeds],
    ignored: list[str],
    per_channel: bool,
    symmetric: bool,
) -> onnx.ModelProto:
    """The model with activations by the samples' ranges; `ignored` nodes stay in float.

    Raises:
        PassError: NNCF isn't installed or can't quantize the model, or the model is too large.
    """
    if model.ByteSize() > onnxfile.MESSAGE_LIMIT:
        raise PassError(
            what="the model is too large for NNCF's ONNX side",
            expected="less than 2.1 GB",
            got=f"{model.ByteSize() / 1e9:.1f} GB",
            remedy="use method: weight-only, or quantize the PyTorch model",
        )
    try:
        import nncf
        from nncf.quantization.advanced_parameters import QuantizationParameters
    except ImportError as error:
        raise PassError(
            what="static quantization of ONNX needs NNCF",
            cause=str(error),
            remedy="pip install 'megacompile[quantize]'",
        ) from error
    presets = nncf.QuantizationPreset
    options: dict[str, Any] = {
        "preset": presets.PERFORMANCE if symmetric else presets.MIXED,
        "model_type": nncf.ModelType.TRANSFORMER if is_attention(model) else None,
        "subset_size": len(samples),
        "ignored_scope": nncf.IgnoredScope(names=ignored) if ignored else None,
        "advanced_parameters": nncf.AdvancedQuantizationParameters(
            weights_quantization_params=QuantizationParameters(per_channel=per_channel)
        ),
    }
    try:
        with silence():
            return nncf.quantize(model, nncf.Dataset(samples), **options)
    except Exception as error:
        raise PassError(
            what="NNCF can't quantize the model",
            where=blamed(model, error),
            cause=first_line(error),
            remedy="name the node in `keep`, or use method: dynamic",
        ) from error


def quantized_by_onnxruntime(
    model: onnx.ModelProto, ignored: set[str], per_channel: bool, work: Path
) -> onnx.ModelProto:
    """The model with activations by the ranges of each call; `ignored` nodes stay in float.

    Raises:
        PassError: ONNX Runtime can't quantize the model.
    """
    import onnxruntime.quantization as ort_quantization

    given, made = work / "float.onnx", work / "dynamic.onnx"
    onnxfile.write(model, given)
    # Gemm becomes MatMul with a suffix before exclusions are looked at
    # (huggingface/optimum#1418); weights of outer graphs are used in bodies, too
    # (microsoft/onnxruntime#8488).
    excluded = [name + suffix for name in sorted(ignored) for suffix in ("", "_MatMul")]
    try:
        with silence():
            ort_quantization.quantize_dynamic(
                given,
                made,
                op_types_to_quantize=list(DYNAMIC_OPERATORS),
                per_channel=per_channel,
                nodes_to_exclude=excluded,
                use_external_data_format=model.ByteSize() > onnxfile.MESSAGE_LIMIT,
                extra_options={"EnableSubgraph": True},
            )
        return onnxfile.read(made)
    except Exception as error:
        raise PassError(
            what="ONNX Runtime can't quantize the model",
            where=blamed(model, error),
            cause=first_line(error),
            remedy="name the node in `keep`, or use method: weight-only",
        ) from error
    finally:
        for path in [*work.glob("float.onnx*"), *work.glob("dynamic.onnx*")]:
            path.unlink()


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """NNCF logs to its own handlers and draws progress bars on standard output."""
    with quiet(), contextlib.redirect_stdout(io.StringIO()):
        yield
