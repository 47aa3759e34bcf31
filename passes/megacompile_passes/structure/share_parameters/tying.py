"""Make several tensors of a module one: what is tied is one object, wherever it is held."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from megacompile.errors import PassError
from megacompile.models.torchmodules import copy_module

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Tie:
    """Full names of tensors that become one, and the value that the one has."""

    names: tuple[str, ...]
    value: torch.Tensor


def tied_copy(module: torch.nn.Module, ties: Sequence[Tie]) -> torch.nn.Module:
    """A copy of a module in which the tensors of each tie are one object.

    Gradients add up in it, an optimizer sees it once, and pickling keeps it one. Modules, hooks
    and all other tensors stay as they were.

    Raises:
        PassError: a module keeps its tensors where a copy can't replace them (TorchScript).
    """
    held = tensors_of(module)
    replaced: dict[int, torch.Tensor] = {}
    for tie in ties:
        # A tensor that an earlier tie holds already brings all of this tie's with it.
        known = [replaced[id(held[n])] for n in tie.names if id(held[n]) in replaced]
        shared = known[0] if known else _shared(tie, held)
        for name in tie.names:
            replaced[id(held[name])] = shared
    made = copy_module(module, replaced)
    after = tensors_of(made)
    for tie in ties:
        apart = [n for n in tie.names if after[n] is not after[tie.names[0]]]
        if apart:
            raise PassError(
                what=f"'{apart[0]}' can't be tied",
                got=type(module).__name__,
                cause="its module copies its tensors by itself, as TorchScript does",
                remedy="share before scripting, or leave that block out",
            )
    return made


def _shared(tie: Tie, held: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """The one tensor of a tie, of the kind of its first."""
    import torch

    first = held[tie.names[0]]
    value = copy.deepcopy(first.detach())
    value.copy_(tie.value)
    if not is_parameter(first):
        return value
    make: Any = type(first)  # a parameter of the user's own kind stays one
    parameter = make(value, any(held[n].requires_grad for n in tie.names))
    assert isinstance(parameter, torch.Tensor)
    return parameter


def tensors_of(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers by all of their names."""
    return {
        **dict(module.named_parameters(remove_duplicate=False)),
        **dict(module.named_buffers(remove_duplicate=False)),
    }


def is_parameter(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a parameter, of any kind."""
    import torch

    return isinstance(tensor, torch.nn.Parameter)
