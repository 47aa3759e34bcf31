"""Element types in an ONNX graph: what values have, what operators take, what 16 bits hold."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from megacompile.models import Array, numpy_dtype
from megacompile_passes.onnx_graphs.dataflow import values
from megacompile_passes.onnx_graphs.stripping import skeleton

FLOAT = onnx.TensorProto.FLOAT


@dataclass
class Precision:
    """A 16-bit float, `bfloat16` or `float16`, and what it can hold."""

    dtype: str

    @property
    def number(self) -> int:
        """ONNX's number of the type."""
        return int(getattr(onnx.TensorProto, self.dtype.upper()))

    @functools.cached_property
    def largest(self) -> float:
        """The largest finite number."""
        if self.dtype == "float16":
            return float(np.finfo(np.float16).max)
        import ml_dtypes

        return float(ml_dtypes.finfo(ml_dtypes.bfloat16).max)

    def holds(self, array: Array) -> bool:
        """Whether all finite values stay finite, and not all of them vanish."""
        sizes = np.abs(array[np.isfinite(array)])
        largest = float(sizes.max(initial=0))
        smallest_normal = 2.0**-14 if self.dtype == "float16" else 2.0**-126
        return largest == 0 or smallest_normal <= largest <= self.largest

    def round(self, tensor: onnx.TensorProto, name: str) -> onnx.TensorProto:
        """The tensor in this type, under another name."""
        rounded = values(tensor).astype(numpy_dtype(self.dtype))
        return numpy_helper.from_array(rounded, name)


def value_types(model: onnx.ModelProto) -> dict[str, int]:
    """Element types of the main graph's values; the large weights aren't copied for it."""
    inferred = onnx.shape_inference.infer_shapes(skeleton(model)).graph
    known = [*inferred.input, *inferred.value_info, *inferred.output]
    types = {value.name: value.type.tensor_type.elem_type for value in known}
    types.update((t.name, t.data_type) for t in model.graph.initializer)
    return types


def typed_places(
    node: onnx.NodeProto, opset: int, dtype: str
) -> tuple[list[int], list[int]] | None:
    """Positions of inputs and outputs that share the node's float type; None if it has no
    kernel type of that name, or is no standard operator."""
    if node.domain not in ("", "ai.onnx"):
        return None
    try:
        schema = onnx.defs.get_schema(node.op_type, opset, "")
    except onnx.defs.SchemaError:
        return None
    shared = schema.outputs[0].type_str
    allowed = {one.type_param_str: one.allowed_type_strs for one in schema.type_constraints}
    if f"tensor({dtype})" not in allowed.get(shared, ()):
        return None
    inputs = _of_type(schema.inputs, len(node.input), shared)
    return inputs, _of_type(schema.outputs, len(node.output), shared)


def _of_type(formal: Sequence[Any], count: int, type_: str) -> list[int]:
    """Positions of arguments whose formal parameter has a type; the last one may repeat."""
    last = len(formal) - 1
    return [i for i in range(count) if formal[min(i, last)].type_str == type_]
