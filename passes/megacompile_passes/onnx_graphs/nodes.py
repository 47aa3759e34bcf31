"""Nodes of an ONNX graph: names for all of them, selectors, attributes, the opset they need."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import onnx

from megacompile.errors import PassError
from megacompile.models import onnxfile
from megacompile.plan import select
from megacompile_passes.messages import first_line


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


def attribute(node: onnx.NodeProto, name: str, default: Any = None) -> Any:
    """The value of a node's attribute, or the default if it has none of that name."""
    for one in node.attribute:
        if one.name == name:
            return onnx.helper.get_attribute_value(one)
    return default


def nested_nodes(graph: Any) -> Iterator[onnx.NodeProto]:
    """Nodes of a graph and of the bodies inside it."""
    for node in graph.node:
        yield node
        for body in _bodies(node):
            yield from nested_nodes(body)


def nested_graphs(graph: Any) -> Iterator[Any]:
    """A graph and the bodies inside it."""
    yield graph
    for node in graph.node:
        for body in _bodies(node):
            yield from nested_graphs(body)


def _bodies(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    for one in node.attribute:
        yield from [one.g] if one.type == onnx.AttributeProto.GRAPH else one.graphs


def blamed(model: onnx.ModelProto, error: BaseException) -> str | None:
    """The node that a library's message names, if it names one."""
    text = str(error)
    names = sorted((n.name for n in onnxfile.all_nodes(model) if len(n.name) > 2), key=len)
    return next((f"node '{name}'" for name in reversed(names) if name in text), None)
