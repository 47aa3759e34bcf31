"""`mode: identical`: tensors of a module that are equal bit for bit."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from megacompile.plan import Sites
from megacompile_passes.structure.share_parameters.tying import Tie, is_parameter, tensors_of

if TYPE_CHECKING:
    import torch


def equal_tensors(module: torch.nn.Module, trainable: bool) -> tuple[list[Tie], Sites]:
    """Parameters and buffers that are equal bit for bit, as ties.

    `trainable` False leaves those that are trained alone: tied, they would no longer train
    apart, so training would not be the same.
    """
    import torch

    sites = Sites("tensor")
    classes: dict[Any, list[str]] = {}
    held = tensors_of(module)
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
    data = _bytes_of(tensor.detach().cpu()).numpy().data
    digest = hashlib.blake2b(data, digest_size=16).digest()
    return (
        is_parameter(tensor),
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
        own = _bytes_of(held[name])
        for one in classes:
            if torch.equal(own, _bytes_of(held[one[0]])):
                one.append(name)
                break
        else:
            classes.append([name])
    return [one for one in classes if len(one) > 1]


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    import torch

    return tensor.detach().contiguous().flatten().view(torch.uint8)


def _updated_buffers(module: torch.nn.Module) -> set[str]:
    """Running statistics: equal by chance as long as nothing was trained."""
    from torch.nn.modules.batchnorm import _NormBase

    found: set[str] = set()
    for name, one in module.named_modules():
        if isinstance(one, _NormBase):
            buffers = [buffer for buffer, _ in one.named_buffers(recurse=False)]
            found.update(f"{name}.{buffer}" if name else buffer for buffer in buffers)
    return found
