"""Remove from an exported program what its outputs don't need."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from megacompile.models import Exported
from megacompile.plan import PassContext, Result, Sites
from megacompile_passes.graph.simplify.exported_identities import changes_nothing
from megacompile_passes.graph.simplify.options import Simplify
from megacompile_passes.programs.nodes import is_update, operator_name
from megacompile_passes.programs.surgery import copy_graph, rebuild

if TYPE_CHECKING:
    import torch


class SimplifyExported(Simplify[Exported, Exported]):
    """Dead code with its weights, operators that change nothing, and checks of metadata."""

    def run(self, model: Exported, ctx: PassContext) -> Result[Exported]:
        graph = copy_graph(model.program)
        removed: Counter[str] = Counter()
        updates = any(is_update(node) for node in graph.nodes)
        for node in list(graph.nodes):
            if node.op != "call_function":
                continue
            name = operator_name(node)
            if name == "_assert_tensor_metadata":
                # It states what tracing found; a checked signature makes the same sure.
                graph.erase_node(node)
                removed[name] += 1
            elif changes_nothing(node, updates) and not _is_interface(node, graph):
                node.replace_all_uses_with(node.args[0])
                graph.erase_node(node)
                removed[name] += 1
        removed.update(_remove_dead(graph))
        program = rebuild(model.program, graph)

        weights = len(model.program.state_dict) - len(program.state_dict)
        constants = len(model.program.constants) - len(program.constants)
        sites = Sites("node")
        sites.matched = sites.changed = sum(removed.values())
        if not sites.changed and weights + constants <= 0:
            return Result(model, sites, ["nothing to simplify"])
        simplified = Exported(program, model.signature)
        notes = [f"{name}: {count} removed" for name, count in removed.most_common()]
        before, after = model.parameters(), simplified.parameters()
        if after < before:
            notes.append(f"{before - after} unused weights removed")
        return Result(simplified, sites, notes)


def _is_interface(node: torch.fx.Node, graph: torch.fx.Graph) -> bool:
    """Without this node an output would be an input, or the same tensor as another output."""
    output = next(n for n in reversed(graph.nodes) if n.op == "output")
    if output not in node.users:
        return False
    source = node.args[0]
    return getattr(source, "op", "") == "placeholder" or source in output.all_input_nodes


def _remove_dead(graph: torch.fx.Graph) -> Counter[str]:
    removed: Counter[str] = Counter()
    for node in reversed(list(graph.nodes)):
        if node.op == "call_function" and not node.users and not node.is_impure():
            removed[f"{operator_name(node)} without users"] += 1
            graph.erase_node(node)
    return removed
