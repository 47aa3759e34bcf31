"""Which nodes of an ONNX graph compute in a 16-bit float, and the graph rewritten so.

A value's name always means float32: the 16-bit one has a name of its own. So outputs, bodies of
If and Loop, and nodes that stay in float32 find what they had, and casts appear only where a
value crosses the border.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import helper, numpy_helper

from megacompile.models import Array, numpy_dtype, onnxfile
from megacompile_passes.onnx_graphs.nodes import values
from megacompile_passes.onnx_graphs.stripping import keep_only, replace, skeleton, used_names

FLOAT = onnx.TensorProto.FLOAT
COMPUTE = {"MatMul", "Gemm", "Conv", "ConvTranspose"}
# These follow their inputs: 16 bits if all of them are, as torch's autocast promotes.
MOVE = {
    "Transpose",
    "Reshape",
    "Identity",
    "Squeeze",
    "Unsqueeze",
    "Flatten",
    "Slice",
    "Split",
    "Gather",
    "Expand",
    "Tile",
    "Concat",
    "Pad",
    "DepthToSpace",
    "SpaceToDepth",
}
FOLLOW = MOVE | {
    "Add",
    "Sub",
    "Mul",
    "Relu",
    "LeakyRelu",
    "Clip",
    "Sigmoid",
    "Tanh",
    "Neg",
    "Abs",
    "Max",
    "Min",
    "Where",
    "MaxPool",
    "HardSigmoid",
    "HardSwish",
    "Erf",
    "Gelu",
    "PRelu",
    "Resize",
}
RANK_OF_WEIGHTS = 2


@dataclass
class Decisions:
    """Nodes that compute in 16 bits, by name, and why other products don't."""

    half: set[str] = field(default_factory=set)
    reasons: dict[str, str] = field(default_factory=dict)
    constants: list[str] = field(default_factory=list)
    """Constants outside the 16-bit range; their users stay in float32."""


@dataclass
class Precision:
    dtype: str

    @property
    def number(self) -> int:
        return int(getattr(onnx.TensorProto, self.dtype.upper()))

    @functools.cached_property
    def largest(self) -> float:
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
        rounded = values(tensor).astype(numpy_dtype(self.dtype))
        return numpy_helper.from_array(rounded, name)


def value_types(model: onnx.ModelProto) -> dict[str, int]:
    """Element types of the main graph's values; the large weights aren't copied for it."""
    inferred = onnx.shape_inference.infer_shapes(skeleton(model)).graph
    types = {
        v.name: v.type.tensor_type.elem_type
        for v in [*inferred.input, *inferred.value_info, *inferred.output]
    }
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
    allowed: list[str] = next(
        (c.allowed_type_strs for c in schema.type_constraints if c.type_param_str == shared), []
    )
    if f"tensor({dtype})" not in allowed:
        return None
    inputs = [
        i
        for i in range(len(node.input))
        if schema.inputs[min(i, len(schema.inputs) - 1)].type_str == shared
    ]
    outputs = [
        i
        for i in range(len(node.output))
        if schema.outputs[min(i, len(schema.outputs) - 1)].type_str == shared
    ]
    return inputs, outputs


def decide(
    model: onnx.ModelProto,
    types: dict[str, int],
    precision: Precision,
    refusal: Callable[[onnx.NodeProto], str | None],
) -> Decisions:
    """Go through the graph in order; `refusal` gives a reason to stay in float32."""
    decisions = Decisions()
    opset = onnxfile.opset(model)
    constants = {t.name: t for t in model.graph.initializer}
    fits = {n: precision.holds(values(t)) for n, t in constants.items() if t.data_type == FLOAT}
    native: set[str] = set()
    for node in model.graph.node:
        if node.op_type not in COMPUTE | FOLLOW:
            continue
        places = typed_places(node, opset, precision.dtype)
        reason = refusal(node)
        if places is None:
            reason = reason or f"{node.op_type} has no {precision.dtype} in opset {opset}"
        used = [node.input[i] for i in places[0] if node.input[i]] if places else []
        if any(types.get(name) != FLOAT for name in used):
            reason = reason or "its inputs are not float32"
        outside = [name for name in used if not fits.get(name, True)]
        if outside:
            decisions.constants += [n for n in outside if n not in decisions.constants]
            reason = reason or f"'{outside[0]}' is outside the range of {precision.dtype}"
        if node.op_type in FOLLOW and reason is None:
            follows = [n for n in used if n not in constants or _is_weight(node, constants[n])]
            halves = native | set(constants)
            if not follows or any(name not in halves for name in follows):
                continue
        if reason is not None:
            decisions.reasons[node.name] = reason
            continue
        decisions.half.add(node.name)
        native.update(node.output[i] for i in places[1] if places)  # type: ignore[index]
    return decisions


def _is_weight(node: onnx.NodeProto, tensor: onnx.TensorProto) -> bool:
    return node.op_type in MOVE and len(tensor.dims) >= RANK_OF_WEIGHTS


def rewrite(
    model: onnx.ModelProto, decisions: Decisions, precision: Precision, untied: set[str]
) -> None:
    """Compute in 16 bits as decided, in place.

    A weight that float32 nodes use too is stored in 16 bits and cast for them, so that it stays
    one; for the nodes of `untied` it is stored in float32 as well.
    """
    graph = model.graph
    opset = onnxfile.opset(model)
    wide = {value.name for value in graph.output} | _names_in_bodies(model)
    exact: set[str] = set()
    for node in graph.node:
        half = node.name in decisions.half
        places = typed_places(node, opset, precision.dtype) if half else None
        kept = [n for i, n in enumerate(node.input) if places is None or i not in places[0]]
        wide.update(kept)
        if node.name in untied:
            exact.update(kept)
    weights = {t.name: t for t in graph.initializer if t.data_type == FLOAT}
    dtype, narrow = precision.number, f"_{precision.dtype}"
    done: set[str] = set()
    nodes: list[onnx.NodeProto] = []

    def narrowed(name: str) -> str:
        """The 16-bit value, made by a cast or rounded once if the graph has none yet."""
        if name in done:
            return name + narrow
        done.add(name)
        if name not in weights:
            nodes.append(
                helper.make_node("Cast", [name], [name + narrow], f"{name}_to{narrow}", to=dtype)
            )
            return name + narrow
        graph.initializer.append(precision.round(weights[name], name + narrow))
        if name not in exact and name in wide:
            nodes.insert(0, _widened(name, narrow))
        if name not in exact:
            keep_only(graph.initializer, lambda tensor: tensor.name != name)
        return name + narrow

    for original in list(graph.node):
        if original.name not in decisions.half:
            nodes.append(original)
            continue
        node = onnx.NodeProto()
        node.CopyFrom(original)
        places = typed_places(node, opset, precision.dtype)
        assert places is not None
        for i in places[0]:
            if node.input[i]:
                node.input[i] = narrowed(node.input[i])
        nodes.append(node)
        for i in places[1]:
            name = node.output[i]
            if not name:
                continue
            node.output[i] = name + narrow
            done.add(name)
            if name in wide:
                nodes.append(_widened(name, narrow))
    replace(graph.node, nodes)
    made = {name for node in graph.node for name in node.output}
    keep_only(graph.value_info, lambda value: value.name in made)
    used = used_names(model)
    inputs = {v.name for v in graph.input}
    keep_only(graph.initializer, lambda tensor: tensor.name in used | inputs)


def _widened(name: str, narrow: str) -> onnx.NodeProto:
    return helper.make_node("Cast", [name + narrow], [name], f"{name}_to_float32", to=FLOAT)


def _names_in_bodies(model: onnx.ModelProto) -> set[str]:
    names: set[str] = set()
    for number, graph in enumerate(onnxfile.all_graphs(model)):
        if number:
            names.update(name for node in graph.node for name in node.input)
            names.update(getattr(value, "name", value) for value in graph.output)
    return names
