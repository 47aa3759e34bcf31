"""What torchao's PT2E steps and Inductor's integer kernels get wrong, avoided beforehand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from megacompile_passes.programs.nodes import operator_name, stored_tensor

if TYPE_CHECKING:
    import torch


def own_weights(module: torch.fx.GraphModule) -> None:
    """Give a convolution before a normalization weights of its own when others use them too.

    PT2E folds the normalization into the weight, and with it into every other user
    (pytorch/pytorch#197539).
    """
    import torch

    for node in list(module.graph.nodes):
        if "batch_norm" not in operator_name(node) or not node.args:
            continue
        conv: Any = node.args[0]
        if not operator_name(conv).startswith("conv"):
            continue
        for index, weight in enumerate(conv.args[1:3], start=1):
            if getattr(weight, "op", "") != "get_attr":
                continue
            if _uses(module.graph, weight.target) < 2:
                continue
            name = f"own_{conv.name}_{index}"
            value = stored_tensor(module, weight).clone()
            module.register_parameter(name, torch.nn.Parameter(value, requires_grad=False))
            with module.graph.inserting_before(conv):
                conv.update_arg(index, module.graph.get_attr(name))
    module.recompile()


def _uses(graph: torch.fx.Graph, target: str) -> int:
    same = [node for node in graph.nodes if node.op == "get_attr" and node.target == target]
    return sum(len(node.users) for node in same)


ONE_CHANNEL = "convolutions of one input channel stay in float: Inductor's integer kernel is wrong"


def of_one_channel(module: torch.fx.GraphModule) -> set[str]:
    """Convolutions whose input has one channel.

    Measured with torch 2.13 on AVX512-VNNI: lowered by Inductor in int8 with a dynamic batch, such
    a convolution gives other numbers than the quantized program (cosine 0.38). With one channel,
    strides don't tell channels-last from contiguous.
    """
    import torch

    found = set()
    for node in module.graph.nodes:
        if node.target is torch.ops.aten.conv2d.default:
            weight = node.args[1].meta.get("val")
            groups = node.args[6] if len(node.args) > 6 else 1
            if weight is not None and weight.shape[1] * groups == 1:
                found.add(node.name)
    return found
