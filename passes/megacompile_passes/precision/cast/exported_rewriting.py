"""An exported program's graph with casts where the dtype changes."""

from __future__ import annotations

import functools
from collections.abc import Hashable
from typing import TYPE_CHECKING

from megacompile_passes.precision.cast.exported_operators import MOVES
from megacompile_passes.precision.cast.exported_policy import Policy, is_float32
from megacompile_passes.programs.nodes import operator_name, stored_tensor

if TYPE_CHECKING:
    import torch


def rewrite(module: torch.fx.GraphModule, policy: Policy, dtype: torch.dtype) -> None:
    """Insert casts where the dtype changes; every value is cast at most once each way."""
    import torch

    graph = module.graph
    now: dict[torch.fx.Node, torch.dtype] = {}
    casts: dict[tuple[torch.fx.Node, torch.dtype], torch.fx.Node] = {}
    weights: dict[Hashable, str] = {}
    computing = {n.name for n in policy.computing}

    def cast(node: torch.fx.Node, wanted: torch.dtype) -> torch.fx.Node:
        if now.get(node, wanted) == wanted:
            return node
        if (node, wanted) not in casts:
            unbounded = node.name in policy.unbounded and wanted == dtype
            with graph.inserting_after(node):
                if node.op == "get_attr":
                    made = _weight(module, node, dtype, unbounded, weights)
                else:
                    made = _converted(graph, node, wanted, unbounded)
            casts[node, wanted] = made
        return casts[node, wanted]

    for node in list(graph.nodes):
        if node.op == "output":
            node.args = torch.fx.node.map_arg(node.args, lambda n: cast(n, torch.float32))
        elif node.op != "call_function":
            if is_float32(node):
                now[node] = torch.float32
        elif operator_name(node) in MOVES:
            source = node.all_input_nodes[0] if node.all_input_nodes else None
            if source in now:
                now[node] = now[source]
        elif node.name in computing:
            wanted = torch.float32 if node.name in policy.float32 else dtype
            to_wanted = functools.partial(cast, wanted=wanted)
            node.args = torch.fx.node.map_arg(node.args, to_wanted)
            node.kwargs = torch.fx.node.map_arg(node.kwargs, to_wanted)
            now[node] = wanted
        elif is_float32(node):
            now[node] = torch.float32
    graph.eliminate_dead_code()
    graph.lint()
    module.recompile()


def _converted(
    graph: torch.fx.Graph, node: torch.fx.Node, dtype: torch.dtype, unbounded: bool
) -> torch.fx.Node:
    import torch

    source = node
    if unbounded:
        # A mask's huge number would become -inf, and 0 * -inf or a row of them NaN
        # (huggingface/transformers#17306).
        limit = float(torch.finfo(dtype).max)
        source = graph.call_function(torch.ops.aten.clamp.default, (node, -limit, limit))
        source.meta = dict(node.meta)
    with graph.inserting_after(source):
        made = graph.call_function(torch.ops.aten.to.dtype, (source, dtype))
    made.meta = {k: v for k, v in node.meta.items() if k == "nn_module_stack"}
    return made


def _weight(
    module: torch.fx.GraphModule,
    node: torch.fx.Node,
    dtype: torch.dtype,
    clamp: bool,
    weights: dict[Hashable, str],
) -> torch.fx.Node:
    """A 16-bit copy of a weight; names of one storage share one copy."""
    import torch

    value = stored_tensor(module, node)
    key = (value.untyped_storage().data_ptr(), value.storage_offset(), value.shape, value.stride())
    if key not in weights:
        limit = float(torch.finfo(dtype).max)
        name = f"{str(node.target).replace('.', '_')}_{str(dtype).removeprefix('torch.')}"
        made = (value.clamp(-limit, limit) if clamp else value).to(dtype)
        module.register_parameter(name, torch.nn.Parameter(made, requires_grad=False))
        weights[key] = name
    return module.graph.get_attr(weights[key])
