"""Freeze TorchScript and remove from its graph what its outputs don't need."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from megacompile.errors import PassError
from megacompile.models import Scripted, quiet
from megacompile.plan import PassContext, Result, Sites
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
            for clean in (
                torch._C._jit_pass_peephole,
                torch._C._jit_pass_constant_propagation,
                torch._C._jit_pass_cse,
                torch._C._jit_pass_dce,
            ):
                clean(module.graph)
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


def frozen_copy(module: torch.jit.ScriptModule) -> torch.jit.ScriptModule:
    """A frozen module with a graph of its own; the given one, frozen or not, stays as it is."""
    import torch
    from torch.jit._recursive import wrap_cpp_module

    # torch.jit.freeze refuses a module that is frozen already.
    return wrap_cpp_module(torch._C._freeze_module(module._c, [], True, False))


def _count(module: torch.jit.ScriptModule) -> int:
    graph: Any = module.inlined_graph
    return sum(1 for _ in _nodes(graph))


def _nodes(block: Any) -> Any:
    for node in block.nodes():
        yield node
        for inner in node.blocks():
            yield from _nodes(inner)
