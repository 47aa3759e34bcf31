"""What torch's ONNX exporter leaves to repair: weights twice or turned over, names, traces."""

from __future__ import annotations

import re
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

import numpy as np

from megacompile.models import Signature

if TYPE_CHECKING:
    import onnx_ir
    import torch

TRACES = ("pkg.torch.onnx.stack_trace", "pkg.torch.onnx.fx_node", "pkg.torch.onnx.class_hierarchy")


def repair(program: torch.onnx.ONNXProgram, signature: Signature) -> list[str]:
    """Repair the graph in place; remarks for the report."""
    notes = _share_equal_weights(program)
    _turn_shared_weights(program.model)
    _free_names(program.model)
    _name_sizes(program.model, signature)
    _strip_traces(program.model)
    return notes


def _share_equal_weights(program: torch.onnx.ONNXProgram) -> list[str]:
    """Undo copies of one weight that the exporter listed twice (pytorch/pytorch#108342).

    Tensors are compared by storage, never by content: no weight is read.
    """
    graph = program.model.graph
    first: dict[Hashable, onnx_ir.Value] = {}
    shared = 0
    for value in list(graph.initializers.values()):
        raw = getattr(value.const_value, "raw", None)
        if raw is None or not hasattr(raw, "untyped_storage") or raw.numel() < 2:
            continue
        layout = (raw.storage_offset(), raw.dtype, tuple(raw.shape), raw.stride())
        kept = first.setdefault((raw.untyped_storage().data_ptr(), layout), value)
        if kept is value or value.is_graph_output() or value.is_graph_input():
            continue
        value.replace_all_uses_with(kept)
        assert value.name is not None
        del graph.initializers[value.name]
        shared += 1
    return [f"{shared} copies of shared weights removed"] if shared else []


def _turn_shared_weights(model: Any) -> None:
    """Store a weight the way round that all its users read it.

    The exporter turns a weight of one user over and leaves one of several users behind a
    Transpose, where quantizers don't find it.
    """
    import onnx_ir

    for value in list(model.graph.initializers.values()):
        turns = [use.node for use in value.uses()]
        order = _common_order(turns)
        outer = any(one.graph is not model.graph for one in turns)
        ends = any(one.outputs[0].is_graph_output() for one in turns)
        if not order or outer or ends or value.is_graph_input():
            continue
        turned = np.ascontiguousarray(value.const_value.numpy().transpose(order))
        value.const_value = onnx_ir.tensor(turned, dtype=value.const_value.dtype, name=value.name)
        value.shape = onnx_ir.Shape(turned.shape)
        for one in turns:
            one.outputs[0].replace_all_uses_with(value)
            model.graph.remove(one, safe=True)


def _common_order(users: list[onnx_ir.Node]) -> tuple[int, ...]:
    """The order of axes that all users, each a Transpose, ask for; empty if there is none."""
    if any(one.op_type != "Transpose" for one in users):
        return ()
    orders = {tuple(one.attributes.get_ints("perm", ())) for one in users}
    return orders.pop() if len(orders) == 1 else ()


def _free_names(model: Any) -> None:
    """Rename inner values that bear an input's or output's name: the exporter gives outputs
    their names without looking (an operator `embedding` and an output `embedding`)."""
    ends = [*model.graph.inputs, *model.graph.outputs]
    taken = {value.name for value in ends}
    for node in model.graph:
        for value in node.outputs:
            if value.name in taken and not any(value is end for end in ends):
                number = 1
                while f"{value.name}_inner_{number}" in taken:
                    number += 1
                value.name = f"{value.name}_inner_{number}"
            if value.name:
                taken.add(value.name)


def _name_sizes(model: Any, signature: Signature) -> None:
    """Give dynamic sizes the spec's names in place of torch's symbols (s0, s77)."""
    import onnx_ir

    names: dict[str, str] = {}
    for value in model.graph.inputs:
        spec = signature.tensors.get(value.name)
        if spec is None or value.shape is None:
            continue
        for size, symbol in zip(spec.shape, value.shape, strict=False):
            if isinstance(size, str) and isinstance(symbol, onnx_ir.SymbolicDim) and symbol.value:
                names[str(symbol.value)] = size

    def renamed(text: str) -> str:
        return re.sub(r"[A-Za-z_]\w*", lambda found: names.get(found[0], found[0]), text)

    values = [*model.graph.inputs, *(v for node in model.graph for v in node.outputs)]
    for value in values:
        if value.shape is None or value.shape.frozen:
            continue
        for axis, size in enumerate(value.shape):
            if isinstance(size, onnx_ir.SymbolicDim) and size.value:
                value.shape[axis] = onnx_ir.SymbolicDim(renamed(str(size.value)))


def _strip_traces(model: Any) -> None:
    """Drop source lines and paths of the machine that exported; module paths stay."""
    for node in model.graph.all_nodes():
        for key in TRACES:
            node.metadata_props.pop(key, None)
