"""Fold batch normalization into the convolution before it, in TorchScript."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from megacompile.models import Scripted, quiet
from megacompile.plan import PassContext, Result, Sites
from megacompile_passes.graph.fold_batchnorm.options import FoldBatchNorm
from megacompile_passes.graph.frozen import frozen_copy

if TYPE_CHECKING:
    import torch


class FoldBatchNormScripted(FoldBatchNorm[Scripted, Scripted]):
    """torch's folding on the frozen graph, where every use of a weight is a constant of its own."""

    def run(self, model: Scripted, ctx: PassContext) -> Result[Scripted]:
        import torch

        with quiet(), torch.no_grad():
            module = frozen_copy(model.module)
            before = _normalizations(module)
            torch._C._jit_pass_fold_frozen_conv_bn(module.graph)
            torch._C._jit_pass_dce(module.graph)
        left = _normalizations(module)
        sites = Sites("batch normalization")
        for _ in range(len(before) - len(left)):
            sites.change()
        for site in left:
            sites.skip(site, "no convolution before it whose output nothing else reads")
        if not sites.changed:
            why = "no convolution takes one over" if before else "there is none"
            return Result(model, sites, [f"no batch normalization folded: {why}"])
        return Result(Scripted(module, model.signature), sites)


def _normalizations(module: torch.jit.ScriptModule) -> list[str]:
    graph: Any = module.inlined_graph
    nodes = graph.findAllNodes("aten::batch_norm")
    return [f"%{node.output().debugName()}" for node in nodes]
