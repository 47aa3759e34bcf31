"""Freeze TorchScript and remove from its graph what its outputs don't need."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from megacompile.errors import PassError
from megacompile.models import Scripted, quiet
from megacompile.plan import PassContext, Result, Sites
from megacompile_passes.graph.frozen import frozen_copy
from megacompile_passes.graph.simplify.options import Simplify

if TYPE_CHECKING:
    import torch


class SimplifyScripted(Simplify[Scripted, Scripted]):
    """torch's own clean-ups of a frozen graph: dead code, constants, peepholes, dropout."""

    def run(self, model: Scripted, ctx: PassContext) -> Result[Scripted]:
        import torch

        before, size = _count(model.module), model.size_bytes()
        with quiet(), torch.no_grad():
            module = frozen_copy(model.module)
            torch._C._jit_pass_remove_dropout(module._c)
            torch._C._jit_pass_peephole(module.graph)
            torch._C._jit_pass_constant_propagation(module.graph)
            torch._C._jit_pass_cse(module.graph)
            torch._C._jit_pass_dce(module.graph)
        simplified = Scripted(module, model.signature)
        after = _count(module)
        # Constant propagation computes what it can, however large (onnxsim has the same fault).
        if simplified.size_bytes() > self.growth * size + 1_000_000:
            raise PassError(
                what="simplify made the model larger",
                expected=f"at most {self.growth} times {size} bytes + 1 MB",
                got=f"{simplified.size_bytes()} bytes",
                remedy="raise `growth`, or leave `simplify` out",
            )
        sites = Sites("node")
        sites.matched = sites.changed = max(before - after, 0)
        if after >= before and simplified.size_bytes() >= size:
            return Result(model, sites, ["nothing to simplify"])
        return Result(simplified, sites, [f"{before} nodes before, {after} after"])


def _count(module: torch.jit.ScriptModule) -> int:
    graph: Any = module.inlined_graph
    return sum(1 for _ in _nodes(graph))


def _nodes(block: Any) -> Iterator[Any]:
    for node in block.nodes():
        yield node
        for inner in node.blocks():
            yield from _nodes(inner)
