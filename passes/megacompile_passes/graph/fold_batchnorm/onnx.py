"""`fold-batchnorm` on an ONNX file: Conv, ConvTranspose, Gemm and MatMul take over what follows."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import onnx
from onnx import numpy_helper

from megacompile.models import Array, Onnx, onnxfile
from megacompile.plan import PassContext, Result, Sites
from megacompile_passes.graph.fold_batchnorm.onnx_matching import Fold, Matcher
from megacompile_passes.graph.fold_batchnorm.options import FoldBatchNorm
from megacompile_passes.onnx_graphs.dataflow import consumers, used_names, values
from megacompile_passes.onnx_graphs.fields import keep_only, replace
from megacompile_passes.onnx_graphs.nodes import attribute, name_nodes


class FoldBatchNormOnnx(FoldBatchNorm[Onnx, Onnx]):
    """A product whose output only the normalization reads takes over its scale and shift."""

    libraries: ClassVar[tuple[str, ...]] = ("onnx",)

    def run(self, model: Onnx, ctx: PassContext) -> Result[Onnx]:
        proto = onnxfile.read(model.path)
        name_nodes(proto)
        sites = Sites("BatchNormalization")
        notes: list[str] = []
        matcher = Matcher(proto)
        folded: set[str] = set()
        for norm in [n for n in onnxfile.all_nodes(proto) if n.op_type == "BatchNormalization"]:
            found = matcher.match(norm)
            if isinstance(found, str):
                sites.skip(norm.name, found)
                continue
            notes += _fold(proto, found)
            folded.add(norm.name)
            sites.change()
        if not sites.changed:
            why = f"none of {sites.matched}" if sites.matched else "no"
            return Result(model, sites, [f"{why} BatchNormalization could be folded"])
        # Only now: a replaced list holds copies, and what was matched would no longer be in it.
        replace(proto.graph.node, [n for n in proto.graph.node if n.name not in folded])
        _remove_unused(proto)
        target = ctx.work / "model.onnx"
        onnxfile.write(proto, target)
        return Result(Onnx(target, model.signature), sites, notes)


def _fold(model: onnx.ModelProto, fold: Fold) -> list[str]:
    """Rewrite the product in place; a remark if a shared weight had to be copied."""
    product, norm = fold.product, fold.norm
    name = product.input[1]
    others = [n.name for n in consumers(model).get(name, []) if n.name != product.name]
    dtype = onnx.helper.tensor_dtype_to_np_dtype(fold.weight.data_type)
    weight = _scaled(values(fold.weight).astype(np.float64), fold).astype(dtype)
    # New names: tensors that others use stay as they are.
    new_names = [f"{name}_{norm.name}_folded", f"{norm.name}_bias"]
    for new, array in zip(new_names, (weight, fold.shift.astype(dtype)), strict=True):
        tensor = numpy_helper.from_array(np.ascontiguousarray(array), new)
        model.graph.initializer.append(tensor)
    if product.op_type == "MatMul":
        product.op_type = "Gemm"
    replace(product.input, [product.input[0], *new_names])
    replace(product.attribute, [a for a in product.attribute if a.name != "beta"])
    product.output[0] = norm.output[0]
    if not others:
        return []
    copied = f"weight '{name}' is shared: '{product.name}' got a copy of its own"
    return [f"{copied}, and it stays as it is for {', '.join(others)}"]


def _scaled(weight: Array, fold: Fold) -> Array:
    """Weights times the factor of their output channel."""
    groups = attribute(fold.product, "group", 1)
    if fold.product.op_type == "ConvTranspose" and groups > 1:
        # [in, out / group, …]: group g of the inputs feeds group g of the outputs.
        inner = weight.shape[0] // groups
        factor = np.repeat(fold.scale.reshape(groups, -1), inner, axis=0)
        return weight * factor.reshape(*weight.shape[:2], *[1] * (weight.ndim - 2))
    shape = [1] * weight.ndim
    shape[fold.axis] = -1
    return weight * fold.scale.reshape(shape)


def _remove_unused(model: onnx.ModelProto) -> None:
    """Statistics and old weights that nobody reads any more."""
    old = model.ir_version < 4
    inputs = {value.name for value in model.graph.input}
    defaults = {t.name for t in model.graph.initializer} if old else set()
    used = used_names(model) | (inputs - defaults)
    for graph in onnxfile.all_graphs(model):
        if isinstance(graph, onnx.GraphProto):
            keep_only(graph.initializer, lambda tensor: tensor.name in used)
        kept = [n for n in graph.node if n.op_type != "Constant" or n.output[0] in used]
        replace(graph.node, kept)
    if old:
        # Every weight was listed as an input; the new ones are not, so the old ones go, too.
        replace(model.graph.input, [v for v in model.graph.input if v.name not in defaults])
        model.ir_version = 4
