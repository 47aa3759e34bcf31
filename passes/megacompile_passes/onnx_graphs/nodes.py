"""What passes on ONNX graphs share: names for all nodes, selectors, where a value comes from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from megacompile.errors import PassError
from megacompile.models import Array, onnxfile
from megacompile.plan import select

# Operators that hand a tensor on with the same numbers in another order or shape.
VIEWS = {"Transpose", "Reshape", "Identity", "Squeeze", "Unsqueeze", "Flatten"}


def name_nodes(model: onnx.ModelProto) -> None:
    """Give every node a name of its own, in place: quantizers and selectors go by names."""
    taken: set[str] = set()
    for number, node in enumerate(onnxfile.all_nodes(model)):
        base = node.name or f"{node.op_type}_{node.output[0] if node.output else number}"
        name = base
        while name in taken:
            number += 1
            name = f"{base}_{number}"
        node.name = name
        taken.add(name)


def select_nodes(
    nodes: Sequence[onnx.NodeProto], selectors: Sequence[str], option: str
) -> set[str]:
    """Names of the nodes that selectors mean: by node name, operator, or output name.

    Raises:
        PassError: a selector matches nothing.
    """
    words = [w for node in nodes for w in (node.name, node.op_type, *node.output) if w]
    chosen = select(selectors, sorted(set(words)), option)
    return {n.name for n in nodes if not chosen.isdisjoint((n.name, n.op_type, *n.output))}


def upgrade_opset(model: onnx.ModelProto, minimum: int) -> tuple[onnx.ModelProto, str | None]:
    """The model at an opset that has what a pass writes, and a note if it was older.

    Raises:
        PassError: onnx can't convert the model.
    """
    version = onnxfile.opset(model)
    if version >= minimum:
        return model, None
    try:
        upgraded = onnx.version_converter.convert_version(model, minimum)
    except (RuntimeError, ValueError) as error:
        raise PassError(
            what=f"the model's opset {version} is too old for this pass",
            expected=f"opset {minimum} or later",
            got=f"opset {version}",
            cause=first_line(error),
            remedy=f"export the model again with opset {minimum} or later",
        ) from error
    return upgraded, f"opset {version} was raised to {minimum}"


def producers(graph: Any) -> dict[str, onnx.NodeProto]:
    """The node that makes each value of a graph."""
    return {name: node for node in graph.node for name in node.output}


def consumers(model: onnx.ModelProto) -> dict[str, list[onnx.NodeProto]]:
    """The nodes, of all graphs, that read each name."""
    found: dict[str, list[onnx.NodeProto]] = {}
    for node in onnxfile.all_nodes(model):
        for name in node.input:
            if name:
                found.setdefault(name, []).append(node)
    return found


def origin(name: str, makers: dict[str, onnx.NodeProto]) -> str:
    """The name a value has before views of it were taken."""
    while name in makers and makers[name].op_type in VIEWS:
        name = makers[name].input[0]
    return name


def constants(model: onnx.ModelProto) -> dict[str, onnx.TensorProto]:
    """Initializers and Constant nodes' tensors of all graphs by the name that nodes read."""
    found: dict[str, onnx.TensorProto] = {}
    for graph in onnxfile.all_graphs(model):
        found.update((t.name, t) for t in getattr(graph, "initializer", ()))
        for node in graph.node:
            if node.op_type == "Constant":
                found.update((node.output[0], a.t) for a in node.attribute if a.name == "value")
    return found


def values(tensor: onnx.TensorProto) -> Array:
    return np.asarray(numpy_helper.to_array(tensor))


def attribute(node: onnx.NodeProto, name: str, default: Any = None) -> Any:
    for one in node.attribute:
        if one.name == name:
            return onnx.helper.get_attribute_value(one)
    return default


def first_line(error: BaseException) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), repr(error))


def blamed(model: onnx.ModelProto, error: BaseException) -> str | None:
    """The node that a library's message names, if it names one."""
    text = str(error)
    names = sorted((n.name for n in onnxfile.all_nodes(model) if len(n.name) > 2), key=len)
    return next((f"node '{name}'" for name in reversed(names) if name in text), None)
