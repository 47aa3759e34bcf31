"""What passes ask of a node of an exported program: its operator, its place, its names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from megacompile.plan import select

if TYPE_CHECKING:
    import torch

# Operators with a loop over the sequence inside.
RECURRENT = {"lstm", "gru", "rnn_tanh", "rnn_relu"}


def operator_name(node: torch.fx.Node) -> str:
    """`linear` for aten.linear.default, in-place variants included."""
    packet = getattr(node.target, "overloadpacket", None)
    name = str(packet or getattr(node.target, "__name__", node.target)).rsplit(".", 1)[-1]
    return name.rstrip("_") or name


def is_update(node: torch.fx.Node) -> bool:
    """Whether an operator changes one of its arguments in place."""
    schema = getattr(node.target, "_schema", None)
    return schema is not None and bool(schema.is_mutable)


def module_path(node: torch.fx.Node) -> str:
    """The path in the user's model of the innermost module that a node came from."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    return str(stack[-1][0]).split("module.", 1)[-1] if stack else ""


def place(node: torch.fx.Node) -> str:
    """Innermost module path and node name: what a report calls a site."""
    path = labels(node)[-1]
    return node.name if path == operator_name(node) else f"{path} ({node.name})"


def labels(node: torch.fx.Node) -> list[str]:
    """All that a selector may call a node by: its name, operator, and modules it lies in."""
    found = [node.name, operator_name(node)]
    for path, _ in (node.meta.get("nn_module_stack") or {}).values():
        text = str(path)
        if "module." in text:
            found.append(text.split("module.", 1)[1])
    return found


def selected(
    nodes: list[torch.fx.Node], selectors: list[str], option: str
) -> dict[torch.fx.Node, str]:
    """The nodes that selectors name, each with the label that matched.

    Raises:
        PassError: a selector matches nothing.
    """
    names = list(dict.fromkeys(label for node in nodes for label in labels(node)))
    chosen = select(selectors, names, option)
    return {n: label for n in nodes for label in labels(n) if label in chosen}


def stored_tensor(module: torch.nn.Module, node: torch.fx.Node) -> torch.Tensor:
    """The parameter or buffer of a graph module that a `get_attr` node reads."""
    value: Any = module
    for part in str(node.target).split("."):
        value = getattr(value, part)
    tensor: torch.Tensor = value.detach()
    return tensor
