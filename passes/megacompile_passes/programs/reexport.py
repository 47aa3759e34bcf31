"""Make a program of a graph module that a library or an interpreter has changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from megacompile.errors import PassError
from megacompile.models import Exported, Feeds, quiet, to_torch
from megacompile.plan import PassContext
from megacompile_passes.convert.export import dynamic_shapes
from megacompile_passes.modules.tracing import first_line, resized, trace_sizes
from megacompile_passes.programs.recurrence import symbolic_recurrence
from megacompile_passes.programs.surgery import copy_graph, held, rebuild, tensor_of

if TYPE_CHECKING:
    import torch
    from torch.export import ExportedProgram


def trace_feeds(model: Exported, ctx: PassContext) -> Feeds:
    """Example feeds at sizes that stay symbolic when traced."""
    typical = ctx.examples("typical")
    sizes = trace_sizes(model.signature, model.signature.sizes_of(typical))
    return resized(typical, model.signature, sizes)


def leaves_of(model: Exported, feeds: Feeds) -> tuple[torch.Tensor, ...]:
    return tuple(to_torch(feeds[name]) for name in model.signature.tensors)


def reexport(
    module: torch.nn.Module, model: Exported, feeds: Feeds, share: bool = False
) -> Exported:
    """The module as a program with the signature's sizes, without what it doesn't use.

    `share` merges equal tensors that a quantizer made for several uses of one weight.

    Raises:
        PassError: the changed graph is not exportable for all declared sizes.
    """
    import torch

    leaves = leaves_of(model, feeds)
    try:
        with quiet(), symbolic_recurrence(), torch.no_grad():
            program = torch.export.export(
                module, leaves, dynamic_shapes=dynamic_shapes(model.signature), strict=False
            )
    except Exception as error:
        raise PassError(
            what="the transformed graph can't be exported again",
            cause=first_line(error),
            audience="megacompile",
        ) from error
    program = share_equal(program) if share else rebuild(program, copy_graph(program))
    return Exported(program, model.signature)


def share_equal(program: ExportedProgram) -> ExportedProgram:
    """One tensor for all equal quantized weights and their scales (one block used twelve times),
    and none for what the graph doesn't use."""
    import hashlib

    import torch

    graph = copy_graph(program)
    names = held(program)
    first: dict[Any, torch.fx.Node] = {}
    for node in graph.nodes:
        if node.op != "placeholder" or node.name not in names:
            continue
        value = tensor_of(program, names[node.name])
        # Float weights keep the ties they have; only what a quantizer made may be doubled.
        if value.is_floating_point() and value.numel() > 65_536:
            continue
        data = value.detach().contiguous().flatten().view(torch.uint8) if value.numel() else value
        digest = hashlib.sha256(data.numpy().data if value.numel() else b"").digest()
        kept = first.setdefault((value.dtype, tuple(value.shape), digest), node)
        if kept is not node:
            node.replace_all_uses_with(kept)
    return rebuild(program, graph)
