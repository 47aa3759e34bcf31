"""Take tensors out of an ONNX graph for a while, and put them back where they were.

A library that passes a model as one protobuf message can't see past 2 GiB, and freezes an
initializer that callers may override. Both are met the same way: the tensor becomes a plain
graph input with its dtype and shape, and an initializer again afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx
from onnx import external_data_helper, helper

from megacompile.models import onnxfile

COPY_BYTES = 1 << 24
PAGED_BYTES = 1 << 20


def tensor_bytes(tensor: onnx.TensorProto) -> int:
    """Bytes of a tensor's values, wherever they are stored."""
    size = helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
    return math.prod(tensor.dims) * size


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


def used_names(model: onnx.ModelProto) -> set[str]:
    """Names that some node of some graph reads, or that a graph gives out."""
    used = {name for node in onnxfile.all_nodes(model) for name in node.input}
    for graph in onnxfile.all_graphs(model):
        used.update(getattr(value, "name", value) for value in graph.output)
    return used


def write_streamed(model: onnx.ModelProto, source_folder: Path, path: Path) -> None:
    """Write a model whose tensors may still lie in data files of `source_folder`.

    Values go from file to file in pieces, never through one message.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    location = path.name + onnxfile.DATA_SUFFIX
    used = False
    with open(path.with_name(location), "wb") as stream:
        for tensor in onnxfile.all_tensors(model):
            external = tensor.data_location == onnx.TensorProto.EXTERNAL
            if not external and len(tensor.raw_data) < onnxfile.EXTERNAL_BYTES:
                continue
            used = True
            # Readers map data files into memory: large tensors start at a page.
            alignment = 4096 if tensor_bytes(tensor) >= PAGED_BYTES else 64
            offset = stream.seek(-(-stream.tell() // alignment) * alignment)
            if external:
                info = external_data_helper.ExternalDataInfo(tensor)
                length = info.length or tensor_bytes(tensor)
                _copy_bytes(source_folder / info.location, info.offset or 0, length, stream)
            else:
                length = stream.write(tensor.raw_data)
            # onnx's own setter wants the values in memory; a placeholder satisfies it.
            tensor.raw_data = b""
            external_data_helper.set_external_data(tensor, location, offset, length)
            tensor.ClearField("raw_data")
    if not used:
        path.with_name(location).unlink()
    path.write_bytes(model.SerializeToString())


def _copy_bytes(source: Path, offset: int, length: int, target: object) -> None:
    with open(source, "rb") as stream:
        stream.seek(offset)
        while length > 0:
            piece = stream.read(min(length, COPY_BYTES))
            if not piece:
                raise EOFError(f"{source} ends {length} bytes early")
            target.write(piece)  # type: ignore[attr-defined]
            length -= len(piece)


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
        small = tensor_bytes(tensor) <= onnxfile.EXTERNAL_BYTES
        copy.graph.initializer.append(
            tensor
            if small
            else onnx.TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
        )
    return copy


def keep_only(field_: Any, wanted: Callable[[Any], bool]) -> None:
    """Drop elements of a repeated field; the others are neither copied nor moved in memory."""
    for index in reversed(range(len(field_))):
        if not wanted(field_[index]):
            del field_[index]


def replace(field_: object, values: Iterable[object]) -> None:
    """Set a repeated protobuf field; its old elements stay valid as long as someone has them."""
    values = list(values)
    del field_[:]  # type: ignore[attr-defined]
    field_.extend(values)  # type: ignore[attr-defined]
