"""Which nodes of an ONNX graph compute in a 16-bit float, and why the others don't."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import onnx

from megacompile.models import onnxfile
from megacompile_passes.onnx_graphs.dataflow import values
from megacompile_passes.onnx_graphs.operators import PRODUCTS
from megacompile_passes.precision.cast.onnx_types import FLOAT, Precision, typed_places

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
        if node.op_type not in PRODUCTS | FOLLOW:
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
        assert places is not None
        decisions.half.add(node.name)
        native.update(node.output[i] for i in places[1])
    return decisions


def _is_weight(node: onnx.NodeProto, tensor: onnx.TensorProto) -> bool:
    return node.op_type in MOVE and len(tensor.dims) >= RANK_OF_WEIGHTS
