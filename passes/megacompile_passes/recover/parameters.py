"""Which parameters `recover` trains."""

from __future__ import annotations

from torch import nn

from megacompile.errors import PassError
from megacompile.plan import select


def frozen_names(module: nn.Module, selectors: list[str], prefix: str = "") -> frozenset[str]:
    """Names of parameters that `freeze` holds; one name of a shared parameter holds all.

    Raises:
        PassError: a selector matches nothing.
    """
    named = list(module.named_parameters(remove_duplicate=False))
    known = [name.removeprefix(prefix) for name, _ in named]
    chosen = select(selectors, known, "freeze") if selectors else frozenset()
    held = {id(one) for name, one in named if name.removeprefix(prefix) in chosen}
    return frozenset(name for name, one in named if id(one) in held)


def trained_parameters(module: nn.Module, frozen: frozenset[str]) -> list[nn.Parameter]:
    """The parameters to train, shared ones once; `requires_grad` is set accordingly. Of a model
    whose parameters all have requires_grad=False, as models for inference do, all are trained.

    Raises:
        PassError: none is left.
    """
    named = [(n, p) for n, p in module.named_parameters() if p.is_floating_point()]
    any_trained = any(p.requires_grad for _, p in named)
    found = []
    for name, parameter in named:
        wanted = (parameter.requires_grad or not any_trained) and name not in frozen
        parameter.requires_grad_(wanted)
        if wanted:
            found.append(parameter)
    if not found:
        raise PassError(
            what="`recover` has no parameter to train",
            got=f"{len(frozen)} frozen of {len(named)}",
            remedy="freeze less",
        )
    return found


def without_gradient(module: nn.Module) -> list[str]:
    """Names of parameters that are trained and that no loss reached."""
    named = module.named_parameters()
    return [name for name, one in named if one.requires_grad and one.grad is None]
