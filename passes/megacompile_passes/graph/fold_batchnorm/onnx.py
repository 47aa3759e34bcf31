"""`fold-batchnorm` on an ONNX file: Conv, ConvTranspose, Gemm and MatMul take over what follows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx
from onnx import numpy_helper

from megacompile.models import Array, Onnx, onnxfile
from megacompile.plan import PassContext, Result, Sites
from megacompile_passes.graph.fold_batchnorm.options import FoldBatchNorm
from megacompile_passes.onnx_graphs.nodes import (
    attribute,
    constants,
    consumers,
    name_nodes,
    producers,
    values,
)
from megacompile_passes.onnx_graphs.stripping import keep_only, overridable, replace, used_names

FLOATS = {onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE, onnx.TensorProto.FLOAT16}


class FoldBatchNormOnnx(FoldBatchNorm[Onnx, Onnx]):
    libraries: ClassVar[tuple[str, ...]] = ("onnx",)

    def run(self, model: Onnx, ctx: PassContext) -> Result[Onnx]:
        proto = onnxfile.read(model.path)
        name_nodes(proto)
        sites = Sites("BatchNormalization")
        notes: list[str] = []
        known = constants(proto)
        for name in overridable(proto):
            known.pop(name)
        makers = producers(proto.graph)
        matrices = _matrices(proto)
        folded: set[str] = set()
        for norm in [n for n in onnxfile.all_nodes(proto) if n.op_type == "BatchNormalization"]:
            found = _match(proto, makers, norm, known, matrices)
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


@dataclass
class _Fold:
    """A product, the normalization after it, and the numbers that unite them."""

    product: onnx.NodeProto
    norm: onnx.NodeProto
    weight: onnx.TensorProto
    axis: int
    scale: Array
    shift: Array


def _match(
    model: onnx.ModelProto,
    makers: dict[str, onnx.NodeProto],
    norm: onnx.NodeProto,
    known: dict[str, onnx.TensorProto],
    matrices: set[str],
) -> _Fold | str:
    """What to fold, or the reason why not."""
    if norm.output[0] not in makers:
        return "it is inside a body of If, Loop or Scan"
    product = makers.get(norm.input[0])
    if attribute(norm, "training_mode", 0) or len([o for o in norm.output if o]) > 1:
        return "it is in training mode"
    if product is None or product.op_type not in ("Conv", "ConvTranspose", "Gemm", "MatMul"):
        return "it does not follow a Conv, ConvTranspose, Gemm or MatMul"
    out = product.output[0]
    # Another reader would get the normalized values (pytorch/pytorch#197539).
    readers = consumers(model).get(out, [])
    if len(readers) > 1 or sum(list(n.input).count(out) for n in readers) > 1:
        return f"{product.op_type} '{product.name}' has other users"
    if any(value.name == out for value in model.graph.output):
        return f"{product.op_type} '{product.name}' is an output of the model"
    missing = [i for i in [*norm.input[1:5], *product.input[1:3]] if i and i not in known]
    if missing:
        return f"'{missing[0]}' is not a constant"
    # Channels of a MatMul are last, of BatchNormalization second: the same for matrices only.
    if product.op_type == "MatMul" and out not in matrices:
        return f"the result of '{product.name}' may have more than two dimensions"
    weight = known[product.input[1]]
    if weight.data_type not in FLOATS:
        return "its weight is not in float"
    scale, bias, mean, variance = (values(known[i]).astype(np.float64) for i in norm.input[1:5])
    # (x - mean) * factor + bias; a variance rounded below zero gives no finite factor.
    with np.errstate(invalid="ignore", divide="ignore"):
        factor = scale / np.sqrt(variance + attribute(norm, "epsilon", 1e-5))
    if not np.isfinite(factor).all():
        return "its variance is not positive"
    axis = _channel_axis(product, len(weight.dims))
    if axis is None or _channels(product, weight, axis) != factor.size:
        return f"the channels of '{product.name}' are not those it normalizes"
    previous = 0.0 if len(product.input) < 3 or not product.input[2] else None
    offset = values(known[product.input[2]]).astype(np.float64) if previous is None else previous
    if product.op_type == "Gemm":
        offset = offset * attribute(product, "beta", 1.0)
    if np.ndim(offset) > 1 and math.prod(np.shape(offset)[:-1]) != 1:
        return f"'{product.name}' adds a matrix, not a bias"
    offset = np.reshape(offset, -1) if np.size(offset) > 1 else offset
    return _Fold(product, norm, weight, axis, factor, (offset - mean) * factor + bias)


def _matrices(model: onnx.ModelProto) -> set[str]:
    """Results of MatMul that surely have two dimensions: a Gemm can compute those."""
    products = {n.output[0] for n in model.graph.node if n.op_type == "MatMul"}
    normalized = {n.input[0] for n in model.graph.node if n.op_type == "BatchNormalization"}
    if not products & normalized or model.ByteSize() > onnxfile.MESSAGE_LIMIT:
        return set()
    inferred = onnx.shape_inference.infer_shapes(model)
    return {v.name for v in inferred.graph.value_info if len(v.type.tensor_type.shape.dim) == 2}


def _channel_axis(product: onnx.NodeProto, rank: int) -> int | None:
    """The weight's axis of output channels; None where BatchNormalization's is another one."""
    if product.op_type == "Conv":
        return 0
    if product.op_type == "ConvTranspose":
        return 1
    if product.op_type == "Gemm":
        return 0 if attribute(product, "transB", 0) else 1
    return 1 if rank == 2 else None


def _channels(product: onnx.NodeProto, weight: onnx.TensorProto, axis: int) -> int:
    groups = attribute(product, "group", 1) if product.op_type == "ConvTranspose" else 1
    return int(weight.dims[axis]) * int(groups)


def _fold(model: onnx.ModelProto, fold: _Fold) -> list[str]:
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
    return [
        f"weight '{name}' is shared: '{product.name}' got a copy of its own, and it stays as "
        f"it is for {', '.join(others)}"
    ]


def _scaled(weight: Array, fold: _Fold) -> Array:
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
        replace(
            graph.node, [n for n in graph.node if n.op_type != "Constant" or n.output[0] in used]
        )
    if old:
        # Every weight was listed as an input; the new ones are not, so the old ones go, too.
        replace(model.graph.input, [v for v in model.graph.input if v.name not in defaults])
        model.ir_version = 4
