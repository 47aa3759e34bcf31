"""A convolution of an exported program that takes over the normalization after it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from megacompile_passes.programs.nodes import operator_name

if TYPE_CHECKING:
    import torch

CONVOLUTIONS = {
    "conv1d": False,
    "conv2d": False,
    "conv3d": False,
    "conv_transpose1d": True,
    "conv_transpose2d": True,
    "conv_transpose3d": True,
}


def bias_of(conv: torch.fx.Node) -> Any:
    """A convolution's bias; None if it has none."""
    return conv.args[2] if len(conv.args) > 2 else conv.kwargs.get("bias")


def fold(norm: Any, values: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Put the convolution in the normalization's place.

    Returns:
        The convolution's new weight and bias, by the placeholders that get them.
    """
    import torch

    conv: Any = norm.args[0]
    weight, bias = conv.args[1], bias_of(conv)
    gamma, beta, mean, variance = (
        None if node is None else values[node.name].double() for node in norm.args[1:5]
    )
    assert mean is not None
    assert variance is not None
    eps: Any = norm.args[7] if operator_name(norm) == "batch_norm" else norm.args[6]
    scale = (1 if gamma is None else gamma) / torch.sqrt(variance + eps)
    old_bias = 0 if bias is None else values[bias.name].double()
    new_bias = (old_bias - mean) * scale + (0 if beta is None else beta)

    transposed = CONVOLUTIONS[operator_name(conv)]
    # input, weight, bias, stride, padding, output_padding, groups, dilation
    groups: Any = conv.args[6] if transposed and len(conv.args) > 6 else 1
    new_weight = _scaled(values[weight.name].double(), scale, transposed, groups)
    # A convolution without a bias takes the place of the mean, which nothing else needs.
    place = norm.args[3] if bias is None else bias
    _replace(norm, conv, place)
    dtype = values[weight.name].dtype
    return {weight.name: new_weight.to(dtype), place.name: new_bias.to(dtype)}


def _replace(norm: Any, conv: Any, bias: torch.fx.Node) -> None:
    """Rewrite the graph: the convolution with this bias, and no normalization after it."""
    conv.args = (*conv.args[:2], bias, *conv.args[3:])
    conv.kwargs = {key: value for key, value in conv.kwargs.items() if key != "bias"}
    graph = norm.graph
    if operator_name(norm) == "batch_norm":
        norm.replace_all_uses_with(conv)
    else:
        for item in list(norm.users):
            item.replace_all_uses_with(conv)
            graph.erase_node(item)
    graph.erase_node(norm)


def _scaled(
    weight: torch.Tensor, scale: torch.Tensor, transposed: bool, groups: int
) -> torch.Tensor:
    """The weight with every output channel multiplied by its scale."""
    rest = [1] * (weight.dim() - 2)
    if not transposed:
        return weight * scale.reshape(-1, 1, *rest)
    # (in, out / groups, …): the group is the outer part of the input axis
    split = weight.reshape(groups, -1, *weight.shape[1:])
    return (split * scale.reshape(groups, 1, -1, *rest)).reshape(weight.shape)
