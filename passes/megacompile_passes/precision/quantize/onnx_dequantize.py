"""Nodes that turn 8-bit weights of an ONNX graph back into floats, and the 8-bit weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import helper

from megacompile.models import Array

FLOAT = onnx.TensorProto.FLOAT
INT64 = onnx.TensorProto.INT64


def to_int8(weight: Array, axis: int | None) -> tuple[Array, Array]:
    """Symmetric 8-bit integers and their scale, one in all or one per index of an axis."""
    others = tuple(i for i in range(weight.ndim) if i != axis) if axis is not None else None
    largest = np.abs(weight).max(axis=others, keepdims=True).astype(np.float64)
    scale = np.where(largest > 0, largest / 127, 1.0)
    integers = np.clip(np.rint(weight / scale), -127, 127).astype(np.int8)
    flat = scale.astype(np.float32).reshape(-1)
    return integers, flat if axis is not None else flat.reshape(())


def dequantize(weight: str, scale: str, output: str, name: str, axis: int | None) -> onnx.NodeProto:
    """A DequantizeLinear with one scale in all or one per index of an axis."""
    options = {} if axis is None else {"axis": axis}
    return helper.make_node("DequantizeLinear", [weight, scale], [output], name, **options)


def gather(node: onnx.NodeProto, weight: str, axis: int | None) -> list[onnx.NodeProto]:
    """Look rows up first, dequantize only those: a table is large and few rows are read."""
    table, scale = f"{weight}_quantized", f"{weight}_scale"
    out, ids, name = node.output[0], node.input[1], node.name
    rows = helper.make_node("Gather", [table, ids], [f"{out}_rows"], name, axis=0)
    if axis != 0:
        last = None if axis is None else -1
        return [rows, dequantize(f"{out}_rows", scale, out, f"{name}_DequantizeLinear", last)]

    def make(operator: str, inputs: list[str], made: str, tag: str, **options: Any) -> Any:
        return helper.make_node(operator, inputs, [made], f"{name}_{tag}", **options)

    last_axis = helper.make_tensor(f"{out}_axis", INT64, [1], [-1])
    return [
        rows,
        make("Cast", [f"{out}_rows"], f"{out}_float", "Cast", to=FLOAT),
        make("Gather", [scale, ids], f"{out}_scales", "scales", axis=0),
        make("Constant", [], f"{out}_axis", "axis", value=last_axis),
        make("Unsqueeze", [f"{out}_scales", f"{out}_axis"], f"{out}_scale", "Unsqueeze"),
        make("Mul", [f"{out}_float", f"{out}_scale"], out, "Mul"),
    ]
