"""Fold batch normalization into the convolution before it, in an exported program."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from megacompile.models import Exported
from megacompile.plan import PassContext, Result, Sites
from megacompile_passes.graph.fold_batchnorm.exported_folding import CONVOLUTIONS, bias_of, fold
from megacompile_passes.graph.fold_batchnorm.options import FoldBatchNorm
from megacompile_passes.programs.nodes import module_path, operator_name
from megacompile_passes.programs.surgery import copy_graph, held, rebuild, tensor_of

if TYPE_CHECKING:
    import torch

NORMALIZATIONS = {"batch_norm", "_native_batch_norm_legit_no_training"}


class FoldBatchNormExported(FoldBatchNorm[Exported, Exported]):
    """A convolution whose output only the normalization reads takes over its scale and shift."""

    def run(self, model: Exported, ctx: PassContext) -> Result[Exported]:
        program = model.program
        graph = copy_graph(program)
        names = held(program)
        nodes = {n.name: n for n in graph.nodes if n.op == "placeholder" and n.name in names}
        values = {name: tensor_of(program, names[name]).detach() for name in nodes}
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
            folded = fold(node, values)
            values |= folded  # a second normalization in a row starts from what the first left
            replaced |= {names[name]: value for name, value in folded.items()}
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
    weight, bias, mean = conv.args[1], bias_of(conv), norm.args[3]
    optional = (bias, norm.args[1], norm.args[2])
    parameters = [weight, mean, norm.args[4], *(one for one in optional if one)]
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
