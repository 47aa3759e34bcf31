"""How the operators inside each module are wired: one small graph per module, to compare them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import networkx as nx
    import torch

    Wiring = nx.DiGraph[Any]


@dataclass
class _Call:
    """A module that is running for the first time: its graph, and who made which tensor."""

    graph: Wiring
    made: dict[int, tuple[Any, int]] = field(default_factory=dict)
    """id of a tensor -> the node that made it and which of the node's outputs it is."""


def record_wiring(module: torch.nn.Module, call: Callable[[], Any]) -> dict[str, Wiring]:
    """The graph of every submodule that holds parameters, from its first call in one run.

    Nodes are operators (labelled with their other arguments), the module's own parameters and
    buffers (relative name, shape, dtype) and tensors that come from outside. Edges say which
    argument a tensor is. What is recorded are the operators that ran, not the source: two
    modules of one class that take different branches differ.

    `call` runs `module`, which gets hooks meanwhile: give a copy.
    """
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    recorded: dict[str, _Call] = {}
    running: list[_Call] = []
    alive: list[Any] = []  # an id says who a tensor is only as long as it lives

    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            alive.append((args, kwargs, result))
            for one in running:
                _add(one, str(func), args, kwargs or {}, result)
            return result

    def enter(name: str, one: torch.nn.Module) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            if name not in recorded:
                recorded[name] = _Call(held_tensors(one))
                for node, data in recorded[name].graph.nodes(data=True):
                    recorded[name].made[data["id"]] = (node, 0)
                running.append(recorded[name])
            else:
                running.append(_Call(_empty()))  # a later call: recorded, and thrown away

        return hook

    def leave(*_: Any) -> None:
        running.pop()

    handles = []
    for name, one in module.named_modules():
        if name and next(one.parameters(), None) is not None:
            handles.append(one.register_forward_pre_hook(enter(name, one)))
            handles.append(one.register_forward_hook(leave, always_call=True))
    try:
        with torch.no_grad(), Recorder():
            call()
    finally:
        for handle in handles:
            handle.remove()
    return {name: one.graph for name, one in recorded.items()}


def held_tensors(module: torch.nn.Module) -> Wiring:
    """A graph of nothing but a module's parameters and buffers, once each."""
    graph = _empty()
    held: list[tuple[str, str, torch.Tensor]] = []
    held += [("parameter", *one) for one in module.named_parameters()]
    held += [("buffer", *one) for one in module.named_buffers()]
    for kind, name, tensor in held:
        label = f"{kind} {tuple(tensor.shape)} {tensor.dtype}"
        graph.add_node(name, id=id(tensor), kind=kind, name=name, label=label)
    return graph


def _empty() -> Wiring:
    import networkx as nx

    return nx.DiGraph()


def _add(call: _Call, name: str, args: Any, kwargs: Mapping[str, Any], result: Any) -> None:
    graph, made = call.graph, call.made
    node = graph.number_of_nodes()
    constants: list[str] = []
    graph.add_node(node, kind="operator")
    for position, value in _leaves((args, dict(kwargs))):
        if not _is_tensor(value):
            constants.append(f"{position}={value!r}")
            continue
        if id(value) not in made:
            outside = f"outside {len(made)}"
            label = f"outside {tuple(value.shape)} {value.dtype}"
            graph.add_node(outside, kind="outside", label=label)
            made[id(value)] = (outside, 0)
        source, output = made[id(value)]
        # x + x: one tensor may be several arguments.
        before = graph.edges[source, node]["position"] if graph.has_edge(source, node) else ""
        graph.add_edge(source, node, position=f"{before} {output}>{position}")
    graph.nodes[node]["label"] = f"{name}({', '.join(constants)})"
    for number, (_, value) in enumerate(_leaves(result)):
        if _is_tensor(value):
            made[id(value)] = (node, number)


def _is_tensor(value: Any) -> bool:
    return hasattr(value, "untyped_storage")


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from _leaves(item, f"{path}.{index}")
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves(item, f"{path}.{key}")
    else:
        yield path, value
