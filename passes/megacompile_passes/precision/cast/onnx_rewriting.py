"""An ONNX graph rewritten to compute in a 16-bit float.

A value's name always means float32: the 16-bit one has a name of its own. So outputs, bodies of
If and Loop, and nodes that stay in float32 find what they had, and casts appear only where a
value crosses the border.
"""

from __future__ import annotations

import onnx
from onnx import helper

from megacompile.models import onnxfile
from megacompile_passes.onnx_graphs.dataflow import used_names
from megacompile_passes.onnx_graphs.fields import keep_only, replace
from megacompile_passes.precision.cast.onnx_policy import Decisions
from megacompile_passes.precision.cast.onnx_types import FLOAT, Precision, typed_places


def rewrite(
    model: onnx.ModelProto, decisions: Decisions, precision: Precision, untied: set[str]
) -> None:
    """Compute in 16 bits as decided, in place.

    A weight that float32 nodes use too is stored in 16 bits and cast for them, so that it stays
    one; for the nodes of `untied` it is stored in float32 as well.
    """
    graph = model.graph
    opset = onnxfile.opset(model)
    exact, wide = _read_in_float32(model, decisions, precision, untied)
    weights = {t.name: t for t in graph.initializer if t.data_type == FLOAT}
    dtype, narrow = precision.number, f"_{precision.dtype}"
    done: set[str] = set()
    nodes: list[onnx.NodeProto] = []

    def narrowed(name: str) -> str:
        """The 16-bit value, made by a cast or rounded once if the graph has none yet."""
        half = name + narrow
        if name in done:
            return half
        done.add(name)
        if name not in weights:
            nodes.append(helper.make_node("Cast", [name], [half], f"{name}_to{narrow}", to=dtype))
            return half
        graph.initializer.append(precision.round(weights[name], half))
        if name not in exact:
            if name in wide:
                nodes.insert(0, _widened(name, narrow))
            keep_only(graph.initializer, lambda tensor: tensor.name != name)
        return half

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


def _read_in_float32(
    model: onnx.ModelProto, decisions: Decisions, precision: Precision, untied: set[str]
) -> tuple[set[str], set[str]]:
    """Names that the nodes of `untied` read in float32, and names that anybody does."""
    graph = model.graph
    opset = onnxfile.opset(model)
    exact: set[str] = set()
    wide = {value.name for value in graph.output} | _names_in_bodies(model)
    for node in graph.node:
        half = node.name in decisions.half
        places = typed_places(node, opset, precision.dtype) if half else None
        kept = [n for i, n in enumerate(node.input) if places is None or i not in places[0]]
        wide.update(kept)
        if node.name in untied:
            exact.update(kept)
    return exact, wide


def _widened(name: str, narrow: str) -> onnx.NodeProto:
    return helper.make_node("Cast", [name + narrow], [name], f"{name}_to_float32", to=FLOAT)


def _names_in_bodies(model: onnx.ModelProto) -> set[str]:
    names: set[str] = set()
    for number, graph in enumerate(onnxfile.all_graphs(model)):
        if number:
            names.update(name for node in graph.node for name in node.input)
            names.update(getattr(value, "name", value) for value in graph.output)
    return names
