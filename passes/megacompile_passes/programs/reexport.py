"""Make a program of a graph module that a library or an interpreter has changed."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from megacompile.errors import PassError
from megacompile.models import Exported, Feeds, quiet
from megacompile_passes.messages import first_line
from megacompile_passes.programs.recurrence import symbolic_recurrence
from megacompile_passes.programs.surgery import copy_graph, held, rebuild, tensor_of
from megacompile_passes.programs.trace_inputs import dynamic_shapes, leaves_of

if TYPE_CHECKING:
    import torch
    from torch.export import ExportedProgram


def reexport(
    module: torch.nn.Module, model: Exported, feeds: Feeds, share: bool = False
) -> Exported:
    """The module as a program with the signature's sizes, without what it doesn't use.

    `share` merges equal tensors that a quantizer made for several uses of one weight.

    Raises:
        PassError: the changed graph is not exportable for all declared sizes.
    """
    import torch

    leaves = leaves_of(model.signature, feeds)
    shapes = dynamic_shapes(model.signature)
    try:
        with quiet(), symbolic_recurrence(), torch.no_grad():
            program = torch.export.export(module, leaves, dynamic_shapes=shapes, strict=False)
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
        kept = first.setdefault((value.dtype, tuple(value.shape), _digest(value)), node)
        if kept is not node:
            node.replace_all_uses_with(kept)
    return rebuild(program, graph)


def _digest(value: torch.Tensor) -> bytes:
    import torch

    if not value.numel():
        return b""
    data = value.detach().contiguous().flatten().view(torch.uint8)
    return hashlib.sha256(data.numpy().data).digest()
