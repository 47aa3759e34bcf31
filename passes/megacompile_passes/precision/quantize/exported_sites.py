"""Which operators of an exported program quantization is about, and which of them it reached."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from megacompile.plan import Sites
from megacompile_passes.precision.quantize.pt2e_limits import ONE_CHANNEL, of_one_channel
from megacompile_passes.programs.nodes import RECURRENT, operator_name, place, selected

if TYPE_CHECKING:
    import torch

WEIGHTED = {
    "linear",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "convolution",
    "addmm",
}
PRODUCTS = {"matmul", "bmm", "mm", "scaled_dot_product_attention"}
# These only move elements: a product behind one of them still gets integers.
MOVES = {
    "flatten",
    "view",
    "reshape",
    "permute",
    "transpose",
    "t",
    "detach",
    "dropout",
    "max_pool2d",
    "avg_pool2d",
    "adaptive_avg_pool2d",
}


def quantizable(module: torch.fx.GraphModule) -> dict[str, str]:
    """Names of the nodes that a quantizer may change, and what the report calls them."""
    operators = WEIGHTED | PRODUCTS | RECURRENT
    nodes = [n for n in module.graph.nodes if n.op == "call_function"]
    return {n.name: place(n) for n in nodes if operator_name(n) in operators}


def kept_names(
    module: torch.fx.GraphModule, selectors: list[str], option: str, activations: bool
) -> dict[str, str]:
    """Nodes that stay in float, and why.

    Raises:
        PassError: a selector matches nothing.
    """
    nodes = [n for n in module.graph.nodes if n.op == "call_function"]
    found = dict.fromkeys(of_one_channel(module), ONE_CHANNEL) if activations else {}
    if selectors:
        found |= {n.name: "kept by the spec" for n in selected(nodes, selectors, option)}
    return found


def count_sites(
    module: torch.fx.GraphModule, places: dict[str, str], kept: dict[str, str], method: str
) -> Sites:
    """Sites by what the converted graph holds, not by what was asked for."""
    sites = Sites("operator")
    after = {n.name: n for n in module.graph.nodes if n.op == "call_function"}
    for name, site in places.items():
        node = after.get(name)
        inputs = [] if node is None else [_is_dequantized(a) for a in node.args[:2]]
        needed = inputs[1:] if method == "weight-only" else inputs
        if len(inputs) == 2 and all(needed):
            sites.change()
        elif name in kept:
            sites.skip(site, kept[name])
        else:
            sites.skip(site, _reason(operator_name(node) if node is not None else "", method))
    return sites


def _reason(operator: str, method: str) -> str:
    """Why an operator that nobody asked to keep stays in float."""
    if operator in PRODUCTS:
        return "a product of two activations stays in float"
    if operator in RECURRENT:
        return "recurrent operators stay in float"
    if method == "dynamic" and operator != "linear":
        return f"no dynamic rule for {operator}"
    return f"no rule for {operator or 'this operator'} with this weight"


def _is_dequantized(value: Any) -> bool:
    """Whether a value comes from dequantize, through operators that only move elements."""
    while getattr(value, "op", "") == "call_function":
        name = operator_name(value)
        if name.startswith("dequantize"):
            return True
        if name not in MOVES:
            return False
        value = value.args[0]
    return False
