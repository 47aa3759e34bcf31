"""Repeated blocks of a model: modules whose operators are wired alike, found or named."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from megacompile.errors import PassError
from megacompile.plan import select
from megacompile_passes.modules.isomorphism import correspondence, difference, fingerprint
from megacompile_passes.modules.wiring import held_tensors

if TYPE_CHECKING:
    import networkx as nx
    import torch

    Wirings = Mapping[str, nx.DiGraph[Any]]


@dataclass(frozen=True)
class Group:
    """Blocks that are alike; `parameters[i]` are block i's parameters, as full names, in an
    order that is the same for all blocks."""

    blocks: tuple[str, ...]
    parameters: tuple[tuple[str, ...], ...]


def repeated_blocks(module: torch.nn.Module, wirings: Wirings) -> list[tuple[str, ...]]:
    """Classes of blocks that are alike, those with most parameters first.

    Blocks are children of one module. Leaves count only inside a list of modules: the query and
    key projections of an attention are alike too, and are no repeated blocks. A block inside
    another is left to the larger one.
    """
    from collections import defaultdict

    modules = dict(module.named_modules())
    candidates: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name, graph in wirings.items():
        parent = name.rpartition(".")[0]
        if any(modules[name].children()) or _is_list(modules[parent]):
            candidates[parent, fingerprint(graph)].append(name)
    alike = [c for names in candidates.values() for c in _classes(names, wirings)]
    sizes = {c: sum(_elements(modules[n]) for n in c) for c in alike}
    chosen: list[tuple[str, ...]] = []
    for names in sorted(alike, key=lambda c: -sizes[c]):
        taken = [other for one in chosen for other in one]
        if len(names) > 1 and not any(nested(a, b) for a in names for b in taken):
            chosen.append(names)
    return chosen


def _is_list(module: torch.nn.Module) -> bool:
    from torch import nn

    return isinstance(module, (nn.ModuleList, nn.ModuleDict, nn.Sequential))


def _elements(module: torch.nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def _classes(names: Sequence[str], wirings: Wirings) -> list[tuple[str, ...]]:
    """Names split into classes of isomorphic graphs: an equal fingerprint is no proof."""
    classes: list[list[str]] = []
    for name in names:
        for one in classes:
            if correspondence(wirings[one[0]], wirings[name]) is not None:
                one.append(name)
                break
        else:
            classes.append([name])
    return [tuple(one) for one in classes]


def nested(one: str, other: str) -> bool:
    """Whether one name is the other, or lies inside it."""
    return one == other or one.startswith(f"{other}.") or other.startswith(f"{one}.")


def every(names: Sequence[str], count: int) -> list[tuple[str, ...]]:
    """Runs of so many blocks; a rest of one block is left out."""
    runs = [tuple(names[i : i + count]) for i in range(0, len(names), count)]
    return [run for run in runs if len(run) > 1]


def named_groups(module: torch.nn.Module, groups: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
    """Names of modules for groups of selectors, in the model's order.

    Raises:
        PassError: a selector matches nothing, a group has one block, or two blocks overlap.
    """
    names = [n for n, m in module.named_modules() if n and next(m.parameters(), None) is not None]
    found: list[tuple[str, ...]] = []
    for number, group in enumerate(groups):
        chosen = select(group, names, f"groups[{number}]")
        # `layers.*` matches what lies inside the layers too: the outermost are meant.
        inner = {n for n in names for other in chosen if n.startswith(f"{other}.")}
        outer = [n for n in names if n in chosen and n not in inner]
        if len(outer) < 2:
            raise PassError(
                what="a group of one block shares nothing",
                where=f"groups[{number}]",
                got=", ".join(outer),
                expected="two names or more",
            )
        for name in outer:
            for other in (o for one in found for o in one):
                if nested(name, other):
                    raise PassError(
                        what=f"'{name}' is in two groups",
                        where=f"groups[{number}]",
                        got=f"'{other}' is in a group before",
                        remedy="name each block once",
                    )
        found.append(tuple(outer))
    return found


def matched(module: torch.nn.Module, blocks: Sequence[str], wirings: Wirings) -> Group:
    """The blocks with their parameters side by side.

    Raises:
        PassError: two of them are no isomorphic graphs; it says what differs.
    """
    # A block that forward never calls has parameters and no operators.
    graphs = [wirings.get(name) or held_tensors(module.get_submodule(name)) for name in blocks]
    order = [n for n, data in graphs[0].nodes(data=True) if data["kind"] == "parameter"]
    rows: list[tuple[str, ...]] = []
    for name, graph in zip(blocks, graphs, strict=True):
        mapping = correspondence(graphs[0], graph)
        if mapping is None:
            raise PassError(
                what=f"'{blocks[0]}' and '{name}' can't share parameters",
                expected="blocks with the same operators, wired alike, and parameters "
                "of the same shapes",
                got=difference(graphs[0], graph),
            )
        rows.append(tuple(f"{name}.{mapping[one]}" for one in order))
    return Group(tuple(blocks), tuple(rows))
