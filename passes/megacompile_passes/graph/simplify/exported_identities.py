"""Operators of an exported program whose result is their input."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from megacompile_passes.programs.nodes import operator_name

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


def changes_nothing(node: torch.fx.Node, updates: bool) -> bool:
    """Whether an operator hands its first argument on, same values in the same layout.

    `updates`: something in the graph is updated in place, which a copy may be there for.
    """
    name = operator_name(node)
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
    if source.dtype != result.dtype or source.device != result.device:
        return False
    return _equal(source.shape, result.shape) and _equal(source.stride(), result.stride())


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
    return [_text(size) for size in left] == [_text(size) for size in right]


def _text(size: Any) -> str:
    return str(size.node.expr) if hasattr(size, "node") else str(size)
