"""Which operators of a graph compute in 16 bit, and why the others don't."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from megacompile_passes.programs.surgery import operator_name

if TYPE_CHECKING:
    import torch

NORMALIZATION = {
    "layer_norm",
    "native_layer_norm",
    "batch_norm",
    "_native_batch_norm_legit_no_training",
    "_native_batch_norm_legit",
    "native_batch_norm",
    "cudnn_batch_norm",
    "group_norm",
    "native_group_norm",
    "instance_norm",
    "rms_norm",
    "_fused_rms_norm",
    "local_response_norm",
}
SOFTMAX = {"softmax", "_softmax", "log_softmax", "_log_softmax", "logsumexp"}
REDUCTION = {
    "exp",
    "expm1",
    "pow",
    "rsqrt",
    "sum",
    "mean",
    "var",
    "std",
    "var_mean",
    "std_mean",
    "cumsum",
    "cumprod",
    "logcumsumexp",
    "prod",
    "norm",
    "linalg_vector_norm",
    "dist",
    "log",
    "log1p",
    "cosine_similarity",
    "normalize",
    "trace",
}
RECURRENT = {"lstm", "gru", "rnn_tanh", "rnn_relu"}
# These move elements: they run in the dtype that arrives.
MOVES = {
    "view",
    "reshape",
    "_unsafe_view",
    "permute",
    "transpose",
    "t",
    "expand",
    "expand_as",
    "squeeze",
    "unsqueeze",
    "flatten",
    "unflatten",
    "slice",
    "select",
    "split",
    "chunk",
    "split_with_sizes",
    "unbind",
    "narrow",
    "detach",
    "alias",
    "clone",
    "contiguous",
    "dropout",
    "getitem",
    "repeat",
    "flip",
    "roll",
    "movedim",
    "swapaxes",
    "diagonal",
    "view_as",
    "unfold",
}
# A masked sum or choice of values out of range must not be rounded before the softmax.
ELEMENTWISE = {"add", "sub", "rsub", "mul", "where", "masked_fill", "maximum", "minimum", "neg"}
MEASURE_FREE = MOVES | {"to", "_to_copy", "type_as"}


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
        if node.op == "get_attr":
            if ranges.get(node.name, 0.0) > limit:
                policy.unbounded.add(node.name)
                policy.notes.append(
                    f"constant {node.target} reaches {ranges[node.name]:.4g}: its users stay in "
                    "float32, but for attention, which gets it clamped"
                )
            continue
        if node.op != "call_function":
            continue
        name = operator_name(node)
        beyond = [n for n in node.all_input_nodes if n.name in policy.unbounded]
        if name in MEASURE_FREE:
            if beyond or ranges.get(node.name, 0.0) > limit:
                policy.unbounded.add(node.name)
            continue
        if not _computes(node):
            if ranges.get(node.name, 0.0) > limit:
                policy.unbounded.add(node.name)
            continue
        policy.computing.append(node)
        values = [*node.args, *node.kwargs.values()]
        numbers = [abs(v) for v in values if isinstance(v, (int, float))]
        constant = next((v for v in numbers if limit < v < float("inf")), None)
        largest = ranges.get(node.name, 0.0)
        if node.name in kept:
            policy.float32[node.name] = "kept by the spec"
        elif name in NORMALIZATION:
            policy.float32[node.name] = "normalization"
        elif name in SOFTMAX:
            policy.float32[node.name] = "softmax"
        elif name in REDUCTION or name.endswith("_loss") or not hasattr(node.target, "_schema"):
            policy.float32[node.name] = "reduction"
        elif name in RECURRENT:
            policy.float32[node.name] = "recurrent"
        elif largest > limit:
            policy.float32[node.name] = "range"
            policy.notes.append(f"{node.name} stays in float32: it reaches {largest:.4g}")
        elif constant is not None:
            policy.float32[node.name] = "range"
            policy.notes.append(f"{node.name} stays in float32: its constant is {constant:.4g}")
        elif beyond and not _only_masks(node, beyond):
            policy.float32[node.name] = "range"
        masks = [n for n in beyond if _only_masks(node, [n])]
        if masks and node.name not in policy.float32:
            policy.notes.append(f"{masks[0].name} is clamped to {limit:.4g} as {node.name}'s mask")
        if largest > limit or constant is not None or (beyond and name in ELEMENTWISE):
            policy.unbounded.add(node.name)
    return policy


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
    import torch

    value: Any = node.meta.get("val")
    if isinstance(value, (tuple, list)):
        value = next((v for v in value if isinstance(v, torch.Tensor)), None)
    return isinstance(value, torch.Tensor) and value.dtype == torch.float32
