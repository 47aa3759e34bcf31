"""A model's call kept apart from the caller's module, and what the call changes in it."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from megacompile.errors import ModelError
from megacompile.models import Eager, Feeds

if TYPE_CHECKING:
    import torch


def isolated(model: Eager) -> Eager:
    """The model with modules and buffers of its own; parameters, the bulk, are shared.

    Tracing runs hooks that assign attributes (torch.nn.utils.prune) and updates buffers; neither
    may reach the caller's module.
    """
    import torch

    memo: dict[int, Any] = {id(p): p for p in model.module.parameters()}
    for one in model.module.modules():
        for value in one.__dict__.values():
            if isinstance(value, torch.Tensor) and not value.is_leaf:
                memo[id(value)] = value.detach().clone()
    module = copy.deepcopy(model.module, memo)
    _settle_pruning(module)
    return model.with_module(module)


def _settle_pruning(module: torch.nn.Module) -> None:
    """Replace masks of torch.nn.utils.prune by masked weights: their hooks assign a plain
    attribute on every call, which no exporter captures."""
    import torch
    from torch.nn.utils.prune import BasePruningMethod

    for one in module.modules():
        for key, hook in list(one._forward_pre_hooks.items()):
            if not isinstance(hook, BasePruningMethod):
                continue
            name = hook._tensor_name
            with torch.no_grad():
                masked = hook.apply_mask(one).detach().clone()
            del one._forward_pre_hooks[key], one._parameters[f"{name}_orig"]
            del one._buffers[f"{name}_mask"]
            one.__dict__.pop(name, None)
            one.register_parameter(name, torch.nn.Parameter(masked, requires_grad=False))


def changed_buffers(model: Eager, feeds: Feeds) -> tuple[list[str], Feeds]:
    """Buffers that one call updates, in place or by assignment, and the call's outputs.

    An assigned buffer (`self.n = self.n + 1`) leaves no trace in a captured graph.
    """
    copied = isolated(model)

    def versions() -> dict[str, tuple[int, int]]:
        return {n: (id(b), b._version) for n, b in copied.module.named_buffers()}

    held = list(copied.module.buffers())  # an address is not used again while its owner lives
    before = versions()
    outputs = copied.run(feeds)
    after = versions()
    del held
    changed = [name for name, one in before.items() if after.get(name) != one]
    return changed, outputs


def refuse_mutation(names: list[str]) -> None:
    """Artifacts have no state: an update of a buffer would be lost (pytorch/pytorch#60828).

    Raises:
        ModelError: if there is a name.
    """
    for name in names:
        raise ModelError(
            what=f"buffer '{name}' is mutated by forward",
            expected="a model whose answer depends on its inputs alone",
            remedy=f"expose '{name}' as an input and an output of forward",
        )
