"""`quantize` on an ONNX file: static by NNCF, dynamic by ONNX Runtime, weights alone by us."""

from __future__ import annotations

from typing import Any, ClassVar

import onnx

from megacompile.errors import PassError
from megacompile.models import Onnx, onnxfile
from megacompile.plan import PassContext, Result, Sites
from megacompile_passes.onnx_graphs.dataflow import values
from megacompile_passes.onnx_graphs.fields import replace
from megacompile_passes.onnx_graphs.nodes import name_nodes, select_nodes, upgrade_opset
from megacompile_passes.onnx_graphs.operators import PRODUCT, is_quantized
from megacompile_passes.onnx_graphs.stripping import (
    lift_constants,
    overridable,
    put_back,
    skeleton,
    strip,
)
from megacompile_passes.precision.quantize.onnx_calibration import calibration_feeds
from megacompile_passes.precision.quantize.onnx_libraries import (
    quantized_by_nncf,
    quantized_by_onnxruntime,
)
from megacompile_passes.precision.quantize.onnx_sites import candidates, fragile_nodes, refusals
from megacompile_passes.precision.quantize.onnx_survey import survey, untied
from megacompile_passes.precision.quantize.onnx_weights import quantize_weights, remove_unused
from megacompile_passes.precision.quantize.options import Quantize

# DequantizeLinear has an axis, hence a scale per channel, from here on.
MINIMUM_OPSET = 13


class QuantizeOnnx(Quantize[Onnx, Onnx]):
    """int8 weights; by method 8-bit activations with them."""

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
            result = quantized_by_onnxruntime(prepared, ignored, self.per_channel, ctx.work)
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
            after = onnxfile.count_parameters(target)
            notes.append(
                f"weights of two uses are stored in float and in 8 bits: {', '.join(twice)}; "
                f"{before} parameters became {after}"
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
            swallowed = "kept in float, since a mask's range would swallow the scores"
            notes.append(f"{swallowed}: {', '.join(fragile)}")
        masked = "adds or applies a mask: its range would swallow the scores"
        reasons.update(dict.fromkeys(fragile, masked))
        top_level = {node.name for node in model.graph.node}
        names = sorted((ignored | set(fragile)) & top_level)
        samples = [{**feed, **defaults} for feed in feeds]
        return quantized_by_nncf(model, samples, names, self.per_channel, self.symmetric is True)


def _copy(node: onnx.NodeProto) -> onnx.NodeProto:
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    return copy


def _no_effect(report: Sites, method: str) -> PassError:
    reasons = [f"{site}: {reason}" for site, reason in report.skipped[:5]]
    return PassError(
        what=f"0 of {report.matched} {PRODUCT} quantized",
        expected="at least one with a constant float32 weight",
        got="; ".join(reasons) or "none in the model",
        remedy="shorten `keep`, choose another method, or take `quantize` out",
        cause=f"method: {method} changed nothing",
    )
