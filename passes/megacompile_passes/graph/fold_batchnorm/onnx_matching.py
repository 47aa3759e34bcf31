"""Which BatchNormalization of an ONNX graph a product before it can take over, and as what."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import onnx

from megacompile.models import Array, onnxfile
from megacompile_passes.onnx_graphs.dataflow import constants, consumers, producers, values
from megacompile_passes.onnx_graphs.nodes import attribute
from megacompile_passes.onnx_graphs.operators import PRODUCTS
from megacompile_passes.onnx_graphs.stripping import overridable

FLOATS = {onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE, onnx.TensorProto.FLOAT16}


@dataclass(frozen=True)
class Fold:
    """A product, the normalization after it, and the numbers that unite them."""

    product: onnx.NodeProto
    norm: onnx.NodeProto
    weight: onnx.TensorProto
    axis: int
    scale: Array
    shift: Array


class Matcher:
    """Decides by a model's constants, and by who made what, as they were before any fold."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = model
        self.known = constants(model)
        for name in overridable(model):
            self.known.pop(name)
        self.makers = producers(model.graph)
        self.matrices = _matrices(model)

    def match(self, norm: onnx.NodeProto) -> Fold | str:
        """What to fold, or the reason why not."""
        product = self.makers.get(norm.input[0])
        if reason := self._obstacle(norm, product):
            return reason
        assert product is not None
        weight = self.known[product.input[1]]
        if weight.data_type not in FLOATS:
            return "its weight is not in float"
        scale, bias, mean, variance = (self._numbers(name) for name in norm.input[1:5])
        # (x - mean) * factor + bias; a variance rounded below zero gives no finite factor.
        with np.errstate(invalid="ignore", divide="ignore"):
            factor = scale / np.sqrt(variance + attribute(norm, "epsilon", 1e-5))
        if not np.isfinite(factor).all():
            return "its variance is not positive"
        axis = _channel_axis(product, len(weight.dims))
        if axis is None or _channels(product, weight, axis) != factor.size:
            return f"the channels of '{product.name}' are not those it normalizes"
        offset = self._offset(product)
        if np.ndim(offset) > 1 and math.prod(np.shape(offset)[:-1]) != 1:
            return f"'{product.name}' adds a matrix, not a bias"
        offset = np.reshape(offset, -1) if np.size(offset) > 1 else offset
        return Fold(product, norm, weight, axis, factor, (offset - mean) * factor + bias)

    def _obstacle(self, norm: onnx.NodeProto, product: onnx.NodeProto | None) -> str | None:
        """Why the graph around a normalization forbids to fold it."""
        if norm.output[0] not in self.makers:
            return "it is inside a body of If, Loop or Scan"
        if attribute(norm, "training_mode", 0) or len([o for o in norm.output if o]) > 1:
            return "it is in training mode"
        if product is None or product.op_type not in PRODUCTS:
            return "it does not follow a Conv, ConvTranspose, Gemm or MatMul"
        out = product.output[0]
        # Another reader would get the normalized values (pytorch/pytorch#197539).
        readers = consumers(self.model).get(out, [])
        if len(readers) > 1 or sum(list(n.input).count(out) for n in readers) > 1:
            return f"{product.op_type} '{product.name}' has other users"
        if any(value.name == out for value in self.model.graph.output):
            return f"{product.op_type} '{product.name}' is an output of the model"
        needed = [name for name in [*norm.input[1:5], *product.input[1:3]] if name]
        for name in needed:
            if name not in self.known:
                return f"'{name}' is not a constant"
        # Channels of a MatMul are last, of BatchNormalization second: the same for matrices only.
        if product.op_type == "MatMul" and out not in self.matrices:
            return f"the result of '{product.name}' may have more than two dimensions"
        return None

    def _offset(self, product: onnx.NodeProto) -> Array:
        """What a product adds: its bias, or zero."""
        if len(product.input) < 3 or not product.input[2]:
            return np.zeros(())
        bias = self._numbers(product.input[2])
        return bias * attribute(product, "beta", 1.0) if product.op_type == "Gemm" else bias

    def _numbers(self, name: str) -> Array:
        return values(self.known[name]).astype(np.float64)


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
