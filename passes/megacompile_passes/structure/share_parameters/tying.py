"""Make several tensors of a module one: what is tied is one object, wherever it is held."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from megacompile.errors import PassError
from megacompile.models.torchmodules import copy_module
from megacompile.plan import Sites

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
    import torch

    held = _tensors(module)
    replaced: dict[int, torch.Tensor] = {}
    for tie in ties:
        first = held[tie.names[0]]
        # A tensor that an earlier tie holds already brings all of this tie's with it.
        known = next((replaced[id(held[n])] for n in tie.names if id(held[n]) in replaced), None)
        shared = known
        if shared is None:
            shared = copy.deepcopy(first.detach())
            shared.copy_(tie.value)
            if _is_parameter(first):
                make: Any = type(first)  # a parameter of the user's own kind stays one
                shared = make(shared, any(held[n].requires_grad for n in tie.names))
                assert isinstance(shared, torch.Tensor)
        for name in tie.names:
            replaced[id(held[name])] = shared
    made = copy_module(module, replaced)
    after = _tensors(made)
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


def equal_tensors(module: torch.nn.Module, trainable: bool) -> tuple[list[Tie], Sites]:
    """Parameters and buffers that are equal bit for bit, as ties.

    `trainable` False leaves those that are trained alone: tied, they would no longer train
    apart, so training would not be the same.
    """
    import torch

    sites = Sites("tensor")
    classes: dict[Any, list[str]] = {}
    held = _tensors(module)
    updated = _updated_buffers(module)
    for name, tensor in held.items():
        if tensor.numel() == 0 or tensor.layout is not torch.strided:
            continue
        classes.setdefault(_key(tensor), []).append(name)
    ties: list[Tie] = []
    for names in (n for n in classes.values() if len(n) > 1):
        for equal in _equal_classes(names, held):
            if len({id(held[n]) for n in equal}) < 2:
                continue  # one object already
            kept = []
            for name in equal:
                if name in updated:
                    sites.skip(name, "a statistic that training updates")
                elif held[name].requires_grad and not trainable:
                    sites.skip(name, "it is trained: tied, it would no longer train by itself")
                else:
                    kept.append(name)
            if len({id(held[n]) for n in kept}) > 1:
                ties.append(Tie(tuple(kept), held[kept[0]].detach()))
                for _ in kept:
                    sites.change()
    return ties, sites


def _key(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Tensors that may be one have this in common; the hash of the bytes is only a first sieve."""
    import hashlib

    import torch

    data = tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data
    digest = hashlib.blake2b(data, digest_size=16).digest()
    return (
        _is_parameter(tensor),
        tensor.dtype,
        tuple(tensor.shape),
        tensor.stride(),
        str(tensor.device),
        digest,
    )


def _equal_classes(names: list[str], held: Mapping[str, torch.Tensor]) -> list[list[str]]:
    import torch

    classes: list[list[str]] = []
    for name in names:
        bits = held[name].detach().contiguous().flatten().view(torch.uint8)
        for one in classes:
            other = held[one[0]].detach().contiguous().flatten().view(torch.uint8)
            if torch.equal(bits, other):
                one.append(name)
                break
        else:
            classes.append([name])
    return [one for one in classes if len(one) > 1]


def _updated_buffers(module: torch.nn.Module) -> set[str]:
    """Running statistics: equal by chance as long as nothing was trained."""
    from torch.nn.modules.batchnorm import _NormBase

    return {
        f"{name}.{buffer}" if name else buffer
        for name, one in module.named_modules()
        if isinstance(one, _NormBase)
        for buffer, _ in one.named_buffers(recurse=False)
    }


def _tensors(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {
        **dict(module.named_parameters(remove_duplicate=False)),
        **dict(module.named_buffers(remove_duplicate=False)),
    }


def _is_parameter(tensor: torch.Tensor) -> bool:
    import torch

    return isinstance(tensor, torch.nn.Parameter)
