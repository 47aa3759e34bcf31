"""`cast` on an ONNX file: products in 16 bits, the rest where its range and precision allow.

`keep` adds to what stays in float32 anyway: normalization, softmax, reductions, powers, and
whatever leaves float16's range on measured data.
"""

from __future__ import annotations

from typing import ClassVar

import onnx

from megacompile.errors import PassError
from megacompile.models import Onnx, onnxfile
from megacompile.plan import PassContext, Result
from megacompile_passes.onnx_graphs.fields import replace
from megacompile_passes.onnx_graphs.nodes import name_nodes, select_nodes, upgrade_opset
from megacompile_passes.onnx_graphs.operators import PRODUCTS, is_quantized
from megacompile_passes.onnx_graphs.stripping import (
    Stripped,
    lift_constants,
    overridable,
    put_back,
    strip,
)
from megacompile_passes.precision.cast.onnx_policy import FOLLOW, decide
from megacompile_passes.precision.cast.onnx_ranges import largest_magnitudes
from megacompile_passes.precision.cast.onnx_report import count_sites, remarks, ties
from megacompile_passes.precision.cast.onnx_rewriting import rewrite
from megacompile_passes.precision.cast.onnx_types import FLOAT, Precision, value_types
from megacompile_passes.precision.cast.options import Cast
from megacompile_passes.precision.cast.samples import measurement_feeds

# bfloat16 is a type of Cast, MatMul and most others from opset 13, of Conv and pooling from 22.
BFLOAT16_OPSET = 13
BFLOAT16_CONV_OPSET = 22
# Data to come may be larger than what was measured.
HEADROOM = 2.0


class CastOnnx(Cast[Onnx, Onnx]):
    """Products and what follows them in 16 bit; inputs and outputs keep their dtypes."""

    libraries: ClassVar[tuple[str, ...]] = ("onnx", "onnxruntime")

    def run(self, model: Onnx, ctx: PassContext) -> Result[Onnx]:
        source = onnxfile.read(model.path)
        if is_quantized(source):
            # Scales in float16 make a graph that no runtime loads (microsoft/Olive#852).
            raise PassError(
                what="the model is quantized",
                where=str(model.path),
                expected="weights in float32",
                remedy="`cast` goes before, or instead of, `quantize`",
            )
        precision = Precision(self.dtype)
        graph, note = upgrade_opset(source, self._opset(source))
        notes = [note] if note else []
        name_nodes(graph)
        defaults = set(overridable(graph))
        lift_constants(graph.graph, lambda tensor: tensor.data_type == FLOAT)
        taken = strip(graph, lambda tensor: tensor.name in defaults)
        nodes = list(onnxfile.all_nodes(graph))
        kept = select_nodes(nodes, self.keep or [], "keep")
        types = value_types(graph)
        sizes = self._sizes(graph, types, taken, ctx)
        limit = precision.largest / HEADROOM

        def refusal(node: onnx.NodeProto) -> str | None:
            if node.name in kept:
                return "named by `keep`"
            name = max([*node.input, *node.output], key=lambda n: sizes.get(n, 0.0), default="")
            if sizes.get(name, 0.0) > limit:
                return f"'{name}' reaches {sizes[name]:.4g}"
            return None

        decisions = decide(graph, types, precision, refusal)
        sites = count_sites(nodes, decisions)
        if not sites.changed:
            reasons = sites.skipped or list(decisions.reasons.items())
            raise PassError(
                what=f"0 of {sites.matched} {sites.kind} could be cast",
                expected="float32 products outside the bodies of If and Loop",
                got="; ".join(f"{n}: {r}" for n, r in reasons[:5]) or "none",
                remedy="shorten `keep`, or take `cast` out",
            )
        notes += remarks(decisions, self.dtype)
        rewrite(graph, decisions, precision, kept)
        put_back(graph, taken)
        replace(graph.metadata_props, source.metadata_props)
        target = ctx.work / "model.onnx"
        onnxfile.write(graph, target)
        notes += ties(onnxfile.count_parameters(model.path), onnxfile.count_parameters(target))
        return Result(Onnx(target, model.signature), sites, notes)

    def _sizes(
        self, graph: onnx.ModelProto, types: dict[str, int], taken: Stripped, ctx: PassContext
    ) -> dict[str, float]:
        """How large the values get that decide; bfloat16 reaches as far as float32 does."""
        if self.dtype == "bfloat16":
            return {}
        measured = onnx.ModelProto()
        measured.CopyFrom(graph)
        put_back(measured, taken)
        names = _watched(graph, types)
        return largest_magnitudes(measured, names, measurement_feeds(ctx), ctx.work)

    def _opset(self, model: onnx.ModelProto) -> int:
        if self.dtype == "float16":
            return 1
        operators = {node.op_type for node in model.graph.node}
        convolutions = operators & {"Conv", "ConvTranspose"}
        return BFLOAT16_CONV_OPSET if convolutions else BFLOAT16_OPSET


def _watched(model: onnx.ModelProto, types: dict[str, int]) -> list[str]:
    """Results whose size decides: inputs and outputs of the nodes that may be cast."""
    made = {name for node in model.graph.node for name in node.output}
    nodes = [node for node in model.graph.node if node.op_type in PRODUCTS | FOLLOW]
    names = [name for node in nodes for name in [*node.input, *node.output]]
    return [n for n in dict.fromkeys(names) if n in made and types.get(n) == FLOAT]
