"""Take tensors out of an ONNX graph for a while, and put them back where they were.

A library that passes a model as one protobuf message can't see past 2 GiB, and freezes an
initializer that callers may override. Both are met the same way: the tensor becomes a plain
graph input with its dtype and shape, and an initializer again afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import onnx
from onnx import helper

from megacompile.models import onnxfile
from megacompile_passes.onnx_graphs.dataflow import used_names
from megacompile_passes.onnx_graphs.fields import keep_only, replace
from megacompile_passes.onnx_graphs.streaming import tensor_bytes


def overridable(model: onnx.ModelProto) -> list[str]:
    """Initializers that are graph inputs too: defaults, which a caller may override.

    Before IR version 4 every initializer had to be listed as an input, which said nothing.
    """
    if model.ir_version < 4:
        return []
    inputs = {value.name for value in model.graph.input}
    return [t.name for t in model.graph.initializer if t.name in inputs]


@dataclass
class Stripped:
    """Tensors that were taken out of a model, and the names of its real inputs."""

    tensors: list[onnx.TensorProto] = field(default_factory=list)
    inputs: list[onnx.ValueInfoProto] = field(default_factory=list)


def strip(model: onnx.ModelProto, wanted: Callable[[onnx.TensorProto], bool]) -> Stripped:
    """Turn the main graph's wanted initializers into inputs, in place.

    Constant nodes count as initializers. Before IR version 4, initializers leave the inputs.
    """
    graph = model.graph
    lift_constants(graph, wanted)
    names = {t.name for t in graph.initializer}
    if model.ir_version < 4:
        kept = [value for value in graph.input if value.name not in names]
        replace(graph.input, kept)
        model.ir_version = onnx.IR_VERSION_2017_11_3 + 1
    taken = Stripped(inputs=list(graph.input))
    already = {value.name for value in graph.input}
    for tensor in graph.initializer:
        if not wanted(tensor):
            continue
        taken.tensors.append(tensor)
        if tensor.name not in already:
            value = helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            graph.input.append(value)
    leaving = {tensor.name for tensor in taken.tensors}
    keep_only(graph.initializer, lambda tensor: tensor.name not in leaving)
    return taken


def put_back(model: onnx.ModelProto, taken: Stripped) -> None:
    """Make the taken tensors initializers again, in place; those without a use are left out."""
    used = used_names(model)
    inputs = {value.name for value in taken.inputs}
    replace(model.graph.input, taken.inputs)
    for tensor in taken.tensors:
        if tensor.name in used or tensor.name in inputs:
            model.graph.initializer.append(tensor)


def lift_constants(graph: onnx.GraphProto, wanted: Callable[[onnx.TensorProto], bool]) -> None:
    """Wanted values of Constant nodes become initializers of the same name."""
    nodes = []
    for node in graph.node:
        values = [a.t for a in node.attribute if a.name == "value"]
        if node.op_type == "Constant" and values and wanted(values[0]):
            graph.initializer.append(values[0])
            graph.initializer[-1].name = node.output[0]
        else:
            nodes.append(node)
    if len(nodes) < len(graph.node):
        replace(graph.node, nodes)


def skeleton(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy whose large initializers have a type and a shape but no values."""
    copy = onnx.ModelProto(ir_version=model.ir_version)
    copy.opset_import.extend(model.opset_import)
    copy.functions.extend(model.functions)
    for name in ("node", "input", "output", "value_info"):
        getattr(copy.graph, name).extend(getattr(model.graph, name))
    copy.graph.name = model.graph.name
    for tensor in model.graph.initializer:
        kept = tensor
        if tensor_bytes(tensor) > onnxfile.EXTERNAL_BYTES:
            kept = onnx.TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
        copy.graph.initializer.append(kept)
    return copy
