"""Weights of an ONNX graph in 8-bit integers; activations stay in float.

The dequantized value keeps the weight's name, so that every user of a shared weight, bodies of
If and Loop included, reads the same 8-bit storage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import onnx
from onnx import numpy_helper

from megacompile.models import onnxfile
from megacompile_passes.onnx_graphs.dataflow import used_names, values
from megacompile_passes.onnx_graphs.fields import keep_only, replace
from megacompile_passes.onnx_graphs.nodes import attribute, nested_graphs, nested_nodes
from megacompile_passes.onnx_graphs.operators import VIEWS
from megacompile_passes.precision.quantize.onnx_dequantize import (
    FLOAT,
    dequantize,
    gather,
    to_int8,
)


def quantize_weights(
    model: onnx.ModelProto, per_channel: bool, refused: Callable[[onnx.NodeProto], bool]
) -> dict[str, str]:
    """Quantize in place; a weight stays in float if `refused` says so of one of its users.

    Returns:
        Weights that stay in float because of one user, with that user's name.
    """
    shared: dict[str, str] = {}
    ends = {value.name for value in [*model.graph.input, *model.graph.output]}
    for graph in onnxfile.all_graphs(model):
        added: list[onnx.NodeProto] = []
        for tensor in list(getattr(graph, "initializer", ())):
            if tensor.data_type != FLOAT or len(tensor.dims) < 2 or tensor.name in ends:
                continue
            users = [node for node in nested_nodes(graph) if tensor.name in node.input]
            axes = [a for node in users for a in _axes(graph, node, tensor)]
            if not axes:
                continue
            obstacle = next((node for node in _readers(graph, tensor.name) if refused(node)), None)
            if obstacle is not None:
                shared[tensor.name] = obstacle.name
                continue
            # Rows of an embedding follow whatever its other users need.
            axis = min(axes)[1]
            added += _quantize(graph, tensor, users, axis if per_channel else None)
        replace(graph.node, [*added, *graph.node])
    return shared


def _readers(graph: Any, name: str) -> Iterator[onnx.NodeProto]:
    """Nodes that read a tensor or a view of it."""
    for node in nested_nodes(graph):
        if name in node.input:
            yield node
            if node.op_type in VIEWS:
                yield from _readers(graph, node.output[0])


def _axes(graph: Any, node: onnx.NodeProto, tensor: onnx.TensorProto) -> list[tuple[int, int]]:
    """(rank of the wish, axis of output channels) for a node that multiplies by the tensor."""
    dims = len(tensor.dims)
    places = [i for i, name in enumerate(node.input) if name == tensor.name]
    found = []
    for place in places:
        if node.op_type == "MatMul":
            found.append((0, dims - 1 if place == 1 else dims - 2))
        elif node.op_type == "Gemm" and place == 1:
            found.append((0, 0 if attribute(node, "transB", 0) else 1))
        elif node.op_type in ("Conv", "ConvTranspose") and place == 1:
            found.append((0, int(node.op_type == "ConvTranspose")))
        elif _is_embedding(node, tensor.name) and dims == 2:
            found.append((1, 0))
        elif node.op_type == "Transpose":
            order = attribute(node, "perm", list(reversed(range(dims))))
            inner = onnx.TensorProto(name=node.output[0], dims=[tensor.dims[i] for i in order])
            readers = [n for n in nested_nodes(graph) if node.output[0] in n.input]
            wishes = [w for n in readers if n.op_type not in VIEWS for w in _axes(graph, n, inner)]
            found += [(rank, order[axis]) for rank, axis in wishes]
    return found


def _is_embedding(node: onnx.NodeProto, weight: str) -> bool:
    return node.op_type == "Gather" and node.input[0] == weight and not attribute(node, "axis", 0)


def _quantize(
    graph: Any, tensor: onnx.TensorProto, users: list[onnx.NodeProto], axis: int | None
) -> list[onnx.NodeProto]:
    """Replace an initializer; the nodes that the graph needs at its start."""
    name = tensor.name
    integers, scale = to_int8(values(tensor), axis)
    quantized = numpy_helper.from_array(integers, f"{name}_quantized")
    scales = numpy_helper.from_array(scale, f"{name}_scale")
    keep_only(graph.initializer, lambda one: one.name != name)
    graph.initializer.extend([quantized, scales])
    for holder in nested_graphs(graph):
        nodes: list[onnx.NodeProto] = []
        for node in holder.node:
            if _is_embedding(node, name) and len(tensor.dims) == 2:
                nodes += gather(node, name, axis)
            else:
                nodes.append(node)
        if len(nodes) > len(holder.node):
            replace(holder.node, nodes)
    if all(_is_embedding(node, name) for node in users):
        return []
    return [dequantize(quantized.name, scales.name, name, f"{name}_DequantizeLinear", axis)]


def remove_unused(model: onnx.ModelProto) -> None:
    """Initializers that nobody reads any more leave the main graph."""
    used = used_names(model)
    keep_only(model.graph.initializer, lambda tensor: tensor.name in used)
