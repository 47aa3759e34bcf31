"""Compute an exported program in a 16-bit float, but for what the ranges say goes wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from megacompile.errors import PassError
from megacompile.models import Exported, quiet, torch_dtype
from megacompile.plan import PassContext, Result, Sites
from megacompile_passes.precision.cast.exported_policy import decide
from megacompile_passes.precision.cast.exported_ranges import largest_magnitudes
from megacompile_passes.precision.cast.exported_rewriting import rewrite
from megacompile_passes.precision.cast.options import Cast
from megacompile_passes.programs.nodes import is_update, place, selected
from megacompile_passes.programs.recurrence import symbolic_recurrence
from megacompile_passes.programs.reexport import reexport
from megacompile_passes.programs.surgery import held
from megacompile_passes.programs.trace_inputs import trace_feeds

if TYPE_CHECKING:
    import torch


class CastExported(Cast[Exported, Exported]):
    """Weights are stored in 16 bit, once each; inputs and outputs keep their dtypes."""

    def run(self, model: Exported, ctx: PassContext) -> Result[Exported]:
        import torch

        dtype = torch_dtype(self.dtype)
        limit = float(torch.finfo(dtype).max)
        module = _functional(model)
        nodes = list(module.graph.nodes)
        operators = [n for n in nodes if n.op == "call_function"]
        kept = {n.name for n in selected(operators, self.keep, "keep")} if self.keep else set()
        ranges, samples = largest_magnitudes(module, model.signature, ctx)
        policy = decide(nodes, ranges, kept, limit)
        notes = [f"ranges measured on {samples} inputs", *policy.notes]
        feeds = trace_feeds(model, ctx)
        rewrite(module, policy, dtype)
        sites = Sites("operator")
        for node in policy.computing:
            reason = policy.float32.get(node.name)
            sites.skip(place(node), reason) if reason else sites.change()
        if not sites.changed:
            raise PassError(
                what=f"cast to {self.dtype} changed nothing",
                got=f"0 of {sites.matched} float operators",
                remedy="name fewer operators in `keep`",
            )
        return Result(reexport(module, model, feeds), sites, notes)


def _functional(model: Exported) -> torch.fx.GraphModule:
    """A graph of one's own without updates in place: a cast copy would swallow them."""
    program: Any = model.program
    if any(is_update(node) for node in program.graph.nodes):
        with quiet(), symbolic_recurrence():
            program = program.run_decompositions({})
    module = program.module(check_guards=False)
    by_name = {n.name: n for n in program.graph.nodes}
    values = {target: by_name[name].meta.get("val") for name, target in held(program).items()}
    for node in module.graph.nodes:
        if node.op == "get_attr" and "val" not in node.meta:
            node.meta["val"] = values.get(node.target)
    return module
