"""Edit an exported program's graph without tracing it again: metadata, names and dims survive."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch.export import ExportedProgram


def copy_graph(program: ExportedProgram) -> torch.fx.Graph:
    """A graph of one's own with the same node names; weights are not copied."""
    import torch

    graph = torch.fx.Graph()
    mapping: dict[torch.fx.Node, torch.fx.Node] = {}
    for node in program.graph.nodes:
        made = graph.node_copy(node, mapping.__getitem__)
        made.meta = copy.copy(node.meta)
        mapping[node] = made
        assert made.name == node.name
    return graph


def held(program: ExportedProgram) -> dict[str, str]:
    """Placeholder -> name of the parameter, buffer or constant that it stands for."""
    signature = program.graph_signature
    return {
        **signature.inputs_to_parameters,
        **signature.inputs_to_buffers,
        **signature.inputs_to_lifted_tensor_constants,
    }


def tensor_of(program: ExportedProgram, name: str) -> torch.Tensor:
    """The value of a parameter, buffer or constant by its name."""
    value = program.state_dict.get(name, program.constants.get(name))
    assert value is not None
    return value


def rebuild(
    program: ExportedProgram,
    graph: torch.fx.Graph,
    tensors: dict[str, torch.Tensor] | None = None,
) -> ExportedProgram:
    """A program of an edited graph; placeholders it no longer uses go, with their weights.

    `tensors` replaces weights by name. The given program stays as it is.
    """
    import torch
    from torch.export import ExportedProgram
    from torch.export.graph_signature import InputKind

    weights = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)
    used = {n.name for n in graph.nodes if n.op == "placeholder" and n.users}
    signature = copy.deepcopy(program.graph_signature)
    keep = [
        spec
        for spec in signature.input_specs
        if spec.kind not in weights or getattr(spec.arg, "name", None) in used
    ]
    kept_names = {getattr(s.arg, "name", None) for s in keep}
    for node in list(graph.nodes):
        if node.op == "placeholder" and node.name not in kept_names and not node.users:
            graph.erase_node(node)
    signature.input_specs[:] = keep
    outputs = next(n for n in reversed(graph.nodes) if n.op == "output").args[0]
    for spec, node in zip(signature.output_specs, outputs, strict=True):
        if hasattr(spec.arg, "name") and hasattr(node, "name"):
            spec.arg.name = node.name
    targets = {s.target for s in keep if s.target is not None}
    replaced = tensors or {}
    state = {k: _like(replaced.get(k, v), v) for k, v in program.state_dict.items() if k in targets}
    constants = {k: replaced.get(k, v) for k, v in program.constants.items()}
    for name, value in program.constants.items():
        if name not in targets and isinstance(value, torch.Tensor):
            del constants[name]
    graph.lint()
    module = torch.fx.GraphModule(program.graph_module, graph)
    return ExportedProgram(
        root=module,
        graph=graph,
        graph_signature=signature,
        state_dict=state,
        range_constraints=dict(program.range_constraints),
        module_call_graph=copy.deepcopy(program.module_call_graph),
        example_inputs=program.example_inputs,
        constants=constants,
        verifiers=program.verifiers,
    )


def _like(value: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
    import torch

    if isinstance(before, torch.nn.Parameter) and not isinstance(value, torch.nn.Parameter):
        return torch.nn.Parameter(value, requires_grad=False)
    return value
