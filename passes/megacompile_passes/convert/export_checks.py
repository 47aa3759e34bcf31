"""Checks of a captured program: no state, every declared size, right answers at size 1."""

from __future__ import annotations

from typing import TYPE_CHECKING

from megacompile.errors import PassError
from megacompile.models import Eager, Exported, Feeds, Signature
from megacompile_passes.convert.agreement import agrees, sizes_text
from megacompile_passes.messages import first_line
from megacompile_passes.modules.isolation import changed_buffers, refuse_mutation
from megacompile_passes.programs.trace_inputs import resized

if TYPE_CHECKING:
    import torch


def refuse_mutation_in(program: torch.export.ExportedProgram) -> None:
    """Refuse updates of buffers that are in the graph, also on branches the example took not."""
    graph_signature = program.graph_signature
    mutated = list(graph_signature.buffers_to_mutate.values())
    held = {**graph_signature.inputs_to_buffers, **graph_signature.inputs_to_parameters}
    for node in program.graph.nodes:
        schema = getattr(node.target, "_schema", None)
        if schema is None or not schema.is_mutable:
            continue
        for argument, value in zip(schema.arguments, node.args, strict=False):
            if argument.alias_info is not None and argument.alias_info.is_write:
                mutated += [n for n in (held.get(_alias_root(value).name),) if n]
    refuse_mutation([name.removeprefix("module.") for name in dict.fromkeys(mutated)])


def _alias_root(node: torch.fx.Node) -> torch.fx.Node:
    """The node whose storage a node's value lies in, views followed back."""
    while node.op == "call_function" and node.args:
        schema = getattr(node.target, "_schema", None)
        first = node.args[0]
        if schema is None or not schema.arguments or not hasattr(first, "op"):
            break
        if schema.arguments[0].alias_info is None:
            break
        node = first  # type: ignore[assignment]
    return node


def check_dims(program: torch.export.ExportedProgram, signature: Signature) -> None:
    """Every declared size is a symbol with at least the declared range."""
    user_inputs = set(program.graph_signature.user_inputs)
    nodes = [n for n in program.graph.nodes if n.op == "placeholder" and n.name in user_inputs]
    for node, (name, spec) in zip(nodes, signature.tensors.items(), strict=True):
        for axis, size in enumerate(spec.shape):
            dim = signature.dims.get(size) if isinstance(size, str) else None
            if dim is None or dim.fixed:
                continue
            got = node.meta["val"].shape[axis]
            symbol = getattr(getattr(got, "node", None), "expr", None)
            limits = program.range_constraints.get(symbol) if symbol is not None else None
            # torch treats 0 and 1 apart inside; a lower bound up to 2 takes the sizes below too.
            if limits is not None and limits.lower <= max(dim.min, 2) and limits.upper >= dim.max:
                continue
            raise PassError(
                what=f"torch.export narrowed dim '{size}'",
                where=f"input '{name}', axis {axis}",
                expected=f"{dim.min} to {dim.max}",
                got=f"{limits.lower} to {limits.upper}" if limits else str(got),
                remedy=f"narrow dims.{size} in the spec, or write the model without that size",
            )


def check_smallest(model: Eager, exported: Exported, feeds: Feeds, sizes: dict[str, int]) -> None:
    """A size of 1 is where captured programs break most often: try it (pytorch/pytorch#157621)."""
    dims = {name: model.signature.dims[name] for name in sizes}
    if all(dim.fixed or dim.min != 1 for dim in dims.values()):
        return
    smallest = {name: dim.min for name, dim in dims.items()}
    small = resized(feeds, model.signature, smallest)
    _, expected = changed_buffers(model, small)
    try:
        got = exported.run(small)
    except Exception as error:
        raise PassError(
            what="the exported program refuses a size that the spec declares",
            expected=sizes_text(smallest),
            cause=first_line(error),
        ) from error
    for name, value in expected.items():
        if not agrees(got[name], value):
            raise PassError(
                what=f"output '{name}' of the exported program is wrong at size 1",
                where=sizes_text(smallest),
            )
