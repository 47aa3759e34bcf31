"""Weights of an exported program as integers with scales; activations stay in float."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from megacompile_passes.programs.nodes import operator_name, stored_tensor

if TYPE_CHECKING:
    import torch


def quantize_weights(
    module: torch.fx.GraphModule,
    operators: set[str],
    kept: set[str],
    per_channel: bool,
    bits: int = 8,
) -> None:
    """Replace float weights by int8 ones, of values that `bits` can hold, that the graph turns
    back where they are used."""
    import torch

    graph = module.graph
    most = 2 ** (bits - 1) - 1
    made: dict[tuple[str, int], torch.fx.Node] = {}
    for node in list(graph.nodes):
        name = operator_name(node)
        if node.op != "call_function" or name not in operators or node.name in kept:
            continue
        weight: Any = node.args[1] if len(node.args) > 1 else None
        if getattr(weight, "op", "") != "get_attr":
            continue
        value = stored_tensor(module, weight)
        if value.dtype != torch.float32 or value.dim() < 2:
            continue
        # conv_transpose has its output channels in the second axis
        axis = 1 if "transpose" in name else 0
        key = (weight.target, axis)
        if key not in made:
            with graph.inserting_before(weight.next):
                made[key] = _dequantized(module, weight, value, axis, per_channel, most)
        source = made[key]
        source.meta.setdefault("val", weight.meta.get("val"))
        node.update_arg(1, source)
    graph.eliminate_dead_code()
    graph.lint()
    module.recompile()


def _dequantized(
    module: torch.fx.GraphModule,
    weight: torch.fx.Node,
    value: torch.Tensor,
    axis: int,
    per_channel: bool,
    most: int,
) -> torch.fx.Node:
    import torch

    others = [d for d in range(value.dim()) if d != axis]
    largest = value.abs().amax(dim=others) if per_channel else value.abs().max()
    # A channel of zeros keeps a scale that divides.
    scale = torch.where(largest > 0, largest / most, torch.ones_like(largest))
    shape = [-1 if d == axis else 1 for d in range(value.dim())]
    spread = scale.reshape(shape) if per_channel else scale
    stored = torch.clamp(torch.round(value / spread), -most, most).to(torch.int8)
    base = f"int8_{str(weight.target).replace('.', '_')}_{axis}"
    module.register_buffer(base, stored)
    graph = module.graph
    integers = graph.get_attr(base)
    operators = torch.ops.quantized_decomposed
    if not per_channel:
        arguments = (integers, float(scale), 0, -most, most, torch.int8)
        return graph.call_function(operators.dequantize_per_tensor.default, arguments)
    module.register_buffer(f"{base}_scale", scale)
    module.register_buffer(f"{base}_zero", torch.zeros(scale.shape, dtype=torch.int64))
    scales, zeros = graph.get_attr(f"{base}_scale"), graph.get_attr(f"{base}_zero")
    by_channel = (integers, scales, zeros, axis, -most, most, torch.int8)
    return graph.call_function(operators.dequantize_per_channel.default, by_channel)
