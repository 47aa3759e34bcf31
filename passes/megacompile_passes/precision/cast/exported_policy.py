"""Which operators of a graph compute in 16 bit, and why the others don't."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from megacompile_passes.precision.cast.exported_operators import (
    ELEMENTWISE,
    MEASURE_FREE,
    NORMALIZATION,
    REDUCTION,
    SOFTMAX,
)
from megacompile_passes.programs.nodes import RECURRENT, operator_name

if TYPE_CHECKING:
    import torch


@dataclass
class Policy:
    """Node name -> why it stays in float32; names of values beyond the dtype's range."""

    float32: dict[str, str] = field(default_factory=dict)
    unbounded: set[str] = field(default_factory=set)
    computing: list[torch.fx.Node] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def decide(
    nodes: list[torch.fx.Node], ranges: dict[str, float], kept: set[str], limit: float
) -> Policy:
    """The policy for a graph in order of execution; `limit` is the dtype's largest number."""
    policy = Policy()
    for node in nodes:
        largest = ranges.get(node.name, 0.0)
        if node.op == "get_attr":
            if largest > limit:
                policy.unbounded.add(node.name)
                policy.notes.append(
                    f"constant {node.target} reaches {largest:.4g}: its users stay in float32, "
                    "but for attention, which gets it clamped"
                )
        elif node.op == "call_function":
            beyond = [n for n in node.all_input_nodes if n.name in policy.unbounded]
            if operator_name(node) in MEASURE_FREE:
                if beyond or largest > limit:
                    policy.unbounded.add(node.name)
            elif _computes(node):
                _judge(policy, node, beyond, largest, limit, node.name in kept)
            elif largest > limit:
                policy.unbounded.add(node.name)
    return policy


def _judge(
    policy: Policy,
    node: torch.fx.Node,
    beyond: list[torch.fx.Node],
    largest: float,
    limit: float,
    kept: bool,
) -> None:
    """Decide on one operator; `beyond` are its inputs out of range, `largest` its own values."""
    values = [*node.args, *node.kwargs.values()]
    numbers = [abs(v) for v in values if isinstance(v, (int, float))]
    constant = next((v for v in numbers if limit < v < float("inf")), None)
    reason = "kept by the spec" if kept else _kind(node)
    if reason is None and largest > limit:
        reason = "range"
        policy.notes.append(f"{node.name} stays in float32: it reaches {largest:.4g}")
    elif reason is None and constant is not None:
        reason = "range"
        policy.notes.append(f"{node.name} stays in float32: its constant is {constant:.4g}")
    elif reason is None and beyond and not _only_masks(node, beyond):
        reason = "range"
    policy.computing.append(node)
    if reason is not None:
        policy.float32[node.name] = reason
    masks = [n for n in beyond if _only_masks(node, [n])]
    if masks and reason is None:
        policy.notes.append(f"{masks[0].name} is clamped to {limit:.4g} as {node.name}'s mask")
    elementwise = operator_name(node) in ELEMENTWISE
    if largest > limit or constant is not None or (beyond and elementwise):
        policy.unbounded.add(node.name)


def _kind(node: torch.fx.Node) -> str | None:
    """The kind of operator that always stays in float32; None for the others."""
    name = operator_name(node)
    if name in NORMALIZATION:
        return "normalization"
    if name in SOFTMAX:
        return "softmax"
    if name in REDUCTION or name.endswith("_loss") or not hasattr(node.target, "_schema"):
        return "reduction"
    return "recurrent" if name in RECURRENT else None


def _only_masks(node: torch.fx.Node, beyond: list[torch.fx.Node]) -> bool:
    """Attention takes a mask in its own dtype; a clamped mask masks as well."""
    if operator_name(node) != "scaled_dot_product_attention":
        return False
    mask = node.args[3] if len(node.args) > 3 else node.kwargs.get("attn_mask")
    return all(n is mask for n in beyond)


def _computes(node: torch.fx.Node) -> bool:
    """Whether an operator takes and gives float32 tensors."""
    return is_float32(node) and any(is_float32(n) for n in node.all_input_nodes)


def is_float32(node: torch.fx.Node) -> bool:
    """Whether a node's value, or the first tensor of several, is a float32 tensor."""
    import torch

    value: Any = node.meta.get("val")
    if isinstance(value, (tuple, list)):
        value = next((v for v in value if isinstance(v, torch.Tensor)), None)
    return isinstance(value, torch.Tensor) and value.dtype == torch.float32
