"""`quantize` on an ONNX file: static by NNCF, dynamic by ONNX Runtime, weights alone by us."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from typing import Any, ClassVar

import onnx

from megacompile.errors import PassError
from megacompile.models import Onnx, onnxfile, quiet
from megacompile.plan import PassContext, Result, Sites
from megacompile_passes.onnx_graphs.nodes import (
    blamed,
    first_line,
    name_nodes,
    select_nodes,
    upgrade_opset,
    values,
)
from megacompile_passes.onnx_graphs.stripping import (
    lift_constants,
    overridable,
    put_back,
    replace,
    skeleton,
    strip,
)
from megacompile_passes.precision.quantize.onnx_calibration import calibration_feeds
from megacompile_passes.precision.quantize.onnx_sites import (
    KIND,
    candidates,
    fragile_nodes,
    is_attention,
    is_quantized,
    refusals,
    survey,
    untied,
)
from megacompile_passes.precision.quantize.onnx_weights import quantize_weights, remove_unused
from megacompile_passes.precision.quantize.options import Quantize

# DequantizeLinear has an axis, hence a scale per channel, from here on.
MINIMUM_OPSET = 13
DYNAMIC_OPERATORS = ("MatMul", "LSTM", "Attention")


class QuantizeOnnx(Quantize[Onnx, Onnx]):
    libraries: ClassVar[tuple[str, ...]] = ("nncf", "onnx", "onnxruntime")

    def run(self, model: Onnx, ctx: PassContext) -> Result[Onnx]:
        source = onnxfile.read(model.path)
        if is_quantized(source):
            raise PassError(
                what="the model is quantized already",
                where=str(model.path),
                expected="weights in float32",
                remedy="take `quantize` out, or start from the float model",
            )
        before = onnxfile.count_parameters(model.path)
        prepared, note = upgrade_opset(source, MINIMUM_OPSET)
        notes = [note] if note else []
        name_nodes(prepared)
        # Quantizers look for weights among the initializers, and freeze those that a caller
        # may override (microsoft/onnxruntime#3449).
        for graph in onnxfile.all_graphs(prepared):
            if isinstance(graph, onnx.GraphProto):
                lift_constants(graph, lambda tensor: tensor.data_type == onnx.TensorProto.FLOAT)
        defaults = set(overridable(prepared))
        taken = strip(prepared, lambda tensor: tensor.name in defaults)
        sites = [_copy(node) for node in candidates(prepared, self.method)]
        kept = select_nodes(list(onnxfile.all_nodes(prepared)), self.keep, "keep")
        reasons = refusals(prepared, sites, kept, self.method, defaults)

        ignored = kept | set(reasons)
        if self.method == "static":
            # The default of an overridable input is what the calibration sees of it.
            feeds = {t.name: values(t) for t in taken.tensors}
            result = self._static(prepared, ctx, ignored, feeds, reasons, notes)
        elif self.method == "dynamic":
            result = self._dynamic(prepared, ctx, ignored, notes)
        else:
            # Rewritten in place: what it was before lives on without its weights.
            result, prepared = prepared, skeleton(prepared)
            shared = quantize_weights(result, self.per_channel, lambda n: n.name in ignored)
            notes += [f"weight '{w}' stays in float: '{n}' uses it too" for w, n in shared.items()]

        put_back(result, taken)
        remove_unused(result)
        replace(result.metadata_props, source.metadata_props)
        target = ctx.work / "model.onnx"
        onnxfile.write(result, target)
        report = survey(prepared, result, sites, reasons)
        if not report.changed:
            raise _no_effect(report, self.method)
        twice = untied(prepared, result, sites, report)
        if twice:
            notes.append(
                f"weights of two uses are stored in float and in 8 bits: "
                f"{', '.join(twice)}; {before} parameters became "
                f"{onnxfile.count_parameters(target)}"
            )
        return Result(Onnx(target, model.signature), report, notes)

    def _static(
        self,
        model: onnx.ModelProto,
        ctx: PassContext,
        ignored: set[str],
        defaults: dict[str, Any],
        reasons: dict[str, str],
        notes: list[str],
    ) -> onnx.ModelProto:
        inputs = [v.name for v in model.graph.input if v.name not in defaults]
        feeds, remarks = calibration_feeds(ctx.calibration(), inputs)
        notes += remarks
        fragile = fragile_nodes(model)
        if fragile:
            notes.append(
                "kept in float, since a mask's range would swallow the scores: "
                + ", ".join(fragile)
            )
        reasons.update(
            dict.fromkeys(fragile, "adds or applies a mask: its range would swallow the scores")
        )
        top_level = {node.name for node in model.graph.node}
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
        names = sorted((ignored | set(fragile)) & top_level)
        weights = QuantizationParameters(per_channel=self.per_channel)
        try:
            with silence():
                return nncf.quantize(
                    model,
                    nncf.Dataset([{**feed, **defaults} for feed in feeds]),
                    preset=presets.PERFORMANCE if self.symmetric is True else presets.MIXED,
                    model_type=nncf.ModelType.TRANSFORMER if is_attention(model) else None,
                    subset_size=len(feeds),
                    ignored_scope=nncf.IgnoredScope(names=names) if names else None,
                    advanced_parameters=nncf.AdvancedQuantizationParameters(
                        weights_quantization_params=weights
                    ),
                )
        except Exception as error:
            raise PassError(
                what="NNCF can't quantize the model",
                where=blamed(model, error),
                cause=f"{type(error).__name__}: {first_line(error)}",
                remedy="name the node in `keep`, or use method: dynamic",
            ) from error

    def _dynamic(
        self, model: onnx.ModelProto, ctx: PassContext, ignored: set[str], notes: list[str]
    ) -> onnx.ModelProto:
        import onnxruntime.quantization as ort_quantization

        given, made = ctx.work / "float.onnx", ctx.work / "dynamic.onnx"
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
                    per_channel=self.per_channel,
                    nodes_to_exclude=excluded,
                    use_external_data_format=model.ByteSize() > onnxfile.MESSAGE_LIMIT,
                    extra_options={"EnableSubgraph": True},
                )
            return onnxfile.read(made)
        except Exception as error:
            raise PassError(
                what="ONNX Runtime can't quantize the model",
                where=blamed(model, error),
                cause=f"{type(error).__name__}: {first_line(error)}",
                remedy="name the node in `keep`, or use method: weight-only",
            ) from error
        finally:
            for path in [*ctx.work.glob("float.onnx*"), *ctx.work.glob("dynamic.onnx*")]:
                path.unlink()


def _copy(node: onnx.NodeProto) -> onnx.NodeProto:
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    return copy


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """NNCF logs to its own handlers and draws progress bars on standard output."""
    with quiet(), contextlib.redirect_stdout(io.StringIO()):
        yield


def _no_effect(report: Sites, method: str) -> PassError:
    reasons = [f"{site}: {reason}" for site, reason in report.skipped[:5]]
    return PassError(
        what=f"0 of {report.matched} {KIND} quantized",
        expected="at least one with a constant float32 weight",
        got="; ".join(reasons) or "none in the model",
        remedy="shorten `keep`, choose another method, or take `quantize` out",
        cause=f"method: {method} changed nothing",
    )
