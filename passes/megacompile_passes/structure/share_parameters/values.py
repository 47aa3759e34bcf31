"""Values for a group of blocks, by their names in its first block, and the ties they make."""

from __future__ import annotations

from typing import TYPE_CHECKING

from megacompile_passes.structure.share_parameters.tying import Tie

if TYPE_CHECKING:
    import torch

    from megacompile_passes.modules.blocks import Group

Values = dict[str, "torch.Tensor"]


def member(module: torch.nn.Module, group: Group, index: int) -> Values:
    """One block's parameters, by their names in the first."""
    held = dict(module.named_parameters(remove_duplicate=False))
    names = zip(group.parameters[0], group.parameters[index], strict=True)
    return {_own(group, name): held[own].detach() for name, own in names}


def mean(module: torch.nn.Module, group: Group) -> Values:
    """The mean over the blocks: the least-squares best for the values themselves."""
    import torch

    held = dict(module.named_parameters(remove_duplicate=False))
    found = {}
    for names in zip(*group.parameters, strict=True):
        stacked = torch.stack([held[n].detach().double() for n in names])
        found[_own(group, names[0])] = stacked.mean(0).to(held[names[0]].dtype)
    return found


def ties_of(module: torch.nn.Module, group: Group, values: Values) -> list[Tie]:
    """A tie for each parameter of a group that is not one object already."""
    held = dict(module.named_parameters(remove_duplicate=False))
    return [
        Tie(tuple(names), values[_own(group, names[0])])
        for names in zip(*group.parameters, strict=True)
        if len({id(held[n]) for n in names}) > 1
    ]


def _own(group: Group, name: str) -> str:
    return name.removeprefix(f"{group.blocks[0]}.")
