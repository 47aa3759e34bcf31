"""Remove from an exported program what its outputs don't need."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from megacompile.models import Exported
from megacompile.plan import PassContext, Result, Sites
from megacompile_passes.graph.simplify.options import Simplify
from megacompile_passes.programs.surgery import copy_graph, operator_name, rebuild

if TYPE_CHECKING:
    import torch

DROPOUT = {"dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout"}
SAME_VALUE = {
    "detach",
    "alias",
    "lift_fresh_copy",
    "to",
    "_to_copy",
    "type_as",
    "contiguous",
    "view",
    "reshape",
    "expand",
    "expand_as",
    "view_as",
    "flatten",
    "_unsafe_view",
    "slice",
    "_conj",
    "resolve_conj",
    "resolve_neg",
    "unflatten",
    "permute",
    "transpose",
}
# These may return a new tensor: without them a later update in place would reach their input.
COPIES = {
    "clone",
    "lift_fresh_copy",
    "to",
    "_to_copy",
    "contiguous",
    "reshape",
    "flatten",
    "type_as",
}


class SimplifyExported(Simplify[Exported, Exported]):
    """Dead code with its weights, operators that change nothing, and checks of metadata."""

    def run(self, model: Exported, ctx: PassContext) -> Result[Exported]:
        graph = copy_graph(model.program)
        removed: Counter[str] = Counter()
        updates = any(_is_update(node) for node in graph.nodes)
        for node in list(graph.nodes):
            if node.op != "call_function":
                continue
            name = operator_name(node)
            if name == "_assert_tensor_metadata":
                # It states what tracing found; a checked signature makes the same sure.
                graph.erase_node(node)
                removed[name] += 1
            elif _changes_nothing(node, name, updates) and not _is_interface(node, graph):
                node.replace_all_uses_with(node.args[0])
                graph.erase_node(node)
                removed[name] += 1
        removed.update(_remove_dead(graph))
        program = rebuild(model.program, graph)

        weights = len(model.program.state_dict) - len(program.state_dict)
        constants = len(model.program.constants) - len(program.constants)
        sites = Sites("node")
        sites.matched = sites.changed = sum(removed.values())
        if not sites.changed and weights + constants <= 0:
            return Result(model, sites, ["nothing to simplify"])
        simplified = Exported(program, model.signature)
        notes = [f"{name}: {count} removed" for name, count in removed.most_common()]
        before, after = model.parameters(), simplified.parameters()
        if after < before:
            notes.append(f"{before - after} unused weights removed")
        return Result(simplified, sites, notes)


def _is_update(node: torch.fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and bool(schema.is_mutable)


def _changes_nothing(node: torch.fx.Node, name: str, updates: bool) -> bool:
    first: Any = node.args[0] if node.args else None
    if not hasattr(first, "meta"):
        return False
    source: Any = first.meta.get("val")
    result: Any = node.meta.get("val")
    if not (hasattr(source, "dtype") and hasattr(result, "dtype")):
        return False
    if name in DROPOUT:
        # dropout(input, p, train) keeps its input outside training
        return len(node.args) > 2 and node.args[2] is False
    if name == "clone":
        return not updates and node.kwargs.get("memory_format") is None
    if name not in SAME_VALUE or (updates and name in COPIES):
        return False
    if name == "slice" and not _whole(node):
        return False
    if name in ("permute", "transpose") and not _in_order(node, name, source.dim()):
        return False
    same = bool(source.dtype == result.dtype and source.device == result.device)
    return same and _equal(source.shape, result.shape) and _equal(source.stride(), result.stride())


def _whole(node: torch.fx.Node) -> bool:
    start = node.args[2] if len(node.args) > 2 else None
    step = node.args[4] if len(node.args) > 4 else 1
    return bool(start in (None, 0) and step == 1)


def _in_order(node: torch.fx.Node, name: str, rank: int) -> bool:
    if name == "transpose":
        return bool(node.args[1] == node.args[2])
    axes = [axis % rank for axis in node.args[1]]  # type: ignore[union-attr, operator]
    return bool(axes == list(range(rank)))


def _equal(left: Any, right: Any) -> bool:
    """Equal by form: symbols are compared as written, which adds no guard."""
    return len(left) == len(right) and all(
        _text(a) == _text(b) for a, b in zip(left, right, strict=True)
    )


def _text(size: Any) -> str:
    return str(size.node.expr) if hasattr(size, "node") else str(size)


def _is_interface(node: torch.fx.Node, graph: torch.fx.Graph) -> bool:
    """Without this node an output would be an input, or the same tensor as another output."""
    output = next(n for n in reversed(graph.nodes) if n.op == "output")
    if output not in node.users:
        return False
    source = node.args[0]
    return getattr(source, "op", "") == "placeholder" or source in output.all_input_nodes


def _remove_dead(graph: torch.fx.Graph) -> Counter[str]:
    removed: Counter[str] = Counter()
    for node in reversed(list(graph.nodes)):
        if node.op == "call_function" and not node.users and not node.is_impure():
            removed[f"{operator_name(node)} without users"] += 1
            graph.erase_node(node)
    return removed
