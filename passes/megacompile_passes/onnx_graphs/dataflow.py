"""Where the values of an ONNX graph come from, who reads them, and which are constants."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from megacompile.models import Array, onnxfile
from megacompile_passes.onnx_graphs.operators import VIEWS


def producers(graph: Any) -> dict[str, onnx.NodeProto]:
    """The node that makes each value of a graph."""
    return {name: node for node in graph.node for name in node.output}


def all_producers(model: onnx.ModelProto) -> dict[str, onnx.NodeProto]:
    """The node that makes each value of the main graph, of bodies and of functions."""
    made: dict[str, onnx.NodeProto] = {}
    for graph in onnxfile.all_graphs(model):
        made.update(producers(graph))
    return made


def consumers(model: onnx.ModelProto) -> dict[str, list[onnx.NodeProto]]:
    """The nodes, of all graphs, that read each name."""
    found: dict[str, list[onnx.NodeProto]] = {}
    for node in onnxfile.all_nodes(model):
        for name in node.input:
            if name:
                found.setdefault(name, []).append(node)
    return found


def used_names(model: onnx.ModelProto) -> set[str]:
    """Names that some node of some graph reads, or that a graph gives out."""
    used = {name for node in onnxfile.all_nodes(model) for name in node.input}
    for graph in onnxfile.all_graphs(model):
        used.update(getattr(value, "name", value) for value in graph.output)
    return used


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
    """A tensor's numbers."""
    return np.asarray(numpy_helper.to_array(tensor))
