"""Fold batch normalization into the convolution before it, in an exported program."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from megacompile.models import Exported
from megacompile.plan import PassContext, Result, Sites
from megacompile_passes.graph.fold_batchnorm.options import FoldBatchNorm
from megacompile_passes.programs.surgery import (
    copy_graph,
    held,
    module_path,
    operator_name,
    rebuild,
)
from megacompile_passes.programs.surgery import tensor_of as tensor_of_program

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
NORMALIZATIONS = {"batch_norm", "_native_batch_norm_legit_no_training"}


class FoldBatchNormExported(FoldBatchNorm[Exported, Exported]):
    """A convolution whose output only the normalization reads takes over its scale and shift."""

    def run(self, model: Exported, ctx: PassContext) -> Result[Exported]:
        program = model.program
        graph = copy_graph(program)
        names = held(program)
        nodes = {n.name: n for n in graph.nodes if n.op == "placeholder" and n.name in names}
        values = {name: tensor_of_program(program, names[name]) for name in nodes}
        uses: Counter[int] = Counter()
        for name, node in nodes.items():
            uses[_storage(values[name])] += len(node.users)

        replaced: dict[str, torch.Tensor] = {}
        sites = Sites("batch normalization")
        for node in list(graph.nodes):
            if node.op != "call_function" or operator_name(node) not in NORMALIZATIONS:
                continue
            reason = _obstacle(node, values, uses)
            if reason:
                sites.skip(module_path(node) or node.name, reason)
                continue
            _fold(node, values, replaced, names)
            sites.change()
        if not sites.changed:
            why = "no convolution takes one over" if sites.matched else "there is none"
            return Result(model, sites, [f"no batch normalization folded: {why}"])
        return Result(Exported(rebuild(program, graph, replaced), model.signature), sites)


def _storage(value: torch.Tensor) -> int:
    return value.untyped_storage().data_ptr()


def _obstacle(norm: Any, values: dict[str, torch.Tensor], uses: Counter[int]) -> str | None:
    """Why a normalization can't be folded; None if it can."""
    conv: Any = norm.args[0]
    if getattr(conv, "op", "") != "call_function" or operator_name(conv) not in CONVOLUTIONS:
        return "no convolution before it"
    if operator_name(norm) == "batch_norm" and norm.args[5] is not False:
        return "it normalizes by the batch's own statistics"
    if len(conv.users) > 1:
        return "the convolution's output is used elsewhere too"
    weight, bias, mean = conv.args[1], _bias(conv), norm.args[3]
    parameters = [weight, mean, norm.args[4], *(n for n in (bias, norm.args[1], norm.args[2]) if n)]
    if any(getattr(p, "name", None) not in values for p in parameters):
        return "a weight is computed, not stored"
    # pytorch/pytorch#197539: a second use of the weight would be normalized too.
    shared = [p for p in (weight, bias) if p is not None and uses[_storage(values[p.name])] > 1]
    if shared:
        return "the convolution's weight is used elsewhere too"
    if bias is None and uses[_storage(values[mean.name])] > 1:
        return "the normalization is used elsewhere too"
    if any(values[p.name].dtype != values[weight.name].dtype for p in parameters):
        return "convolution and normalization have different dtypes"
    return None


def _bias(conv: torch.fx.Node) -> Any:
    return conv.args[2] if len(conv.args) > 2 else conv.kwargs.get("bias")


def _fold(
    norm: Any,
    values: dict[str, torch.Tensor],
    replaced: dict[str, torch.Tensor],
    names: dict[str, str],
) -> None:
    import torch

    conv: Any = norm.args[0]
    weight, bias = conv.args[1], _bias(conv)
    gamma, beta, mean, variance = (
        None if n is None else values[n.name].detach().double() for n in norm.args[1:5]
    )
    assert mean is not None
    assert variance is not None
    eps: Any = norm.args[7] if operator_name(norm) == "batch_norm" else norm.args[6]
    scale = (1 if gamma is None else gamma) / torch.sqrt(variance + eps)
    before = values[weight.name].detach()
    old_bias = 0 if bias is None else values[bias.name].detach().double()
    new_bias = (old_bias - mean) * scale + (0 if beta is None else beta)

    transposed = CONVOLUTIONS[operator_name(conv)]
    # input, weight, bias, stride, padding, output_padding, groups, dilation
    groups: Any = conv.args[6] if transposed and len(conv.args) > 6 else 1
    replaced[names[weight.name]] = _scaled(before.double(), scale, transposed, groups).to(
        before.dtype
    )
    # A convolution without a bias takes the place of the mean, which nothing else needs.
    place = norm.args[3] if bias is None else bias
    replaced[names[place.name]] = new_bias.to(before.dtype)
    if bias is None:
        rest = conv.args[3:]
        conv.args = (*conv.args[:2], place, *rest)
        conv.kwargs = {k: v for k, v in conv.kwargs.items() if k != "bias"}
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
