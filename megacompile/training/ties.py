"""Parameters that share one storage: found in a module, and made in one."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from megacompile.errors import ModelError, did_you_mean


def find_ties(module: nn.Module) -> tuple[tuple[str, ...], ...]:
    """Groups of names of one Parameter object, in the module's order; the first name owns it."""
    groups: dict[int, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        groups.setdefault(id(parameter), []).append(name)
    return tuple(tuple(names) for names in groups.values() if len(names) > 1)


def apply_ties(module: nn.Module, ties: Sequence[Sequence[str]]) -> None:
    """Give every name of a group the Parameter object of the group's first name, in place.

    Raises:
        ModelError: a name is no parameter, or shapes or dtypes differ within a group.
    """
    known = dict(module.named_parameters(remove_duplicate=False))
    for group in ties:
        for name in group:
            if name not in known:
                raise ModelError(
                    what=f"a tie names '{name}', which is no parameter",
                    got=f"{len(known)} parameters",
                    remedy=did_you_mean(name, known),
                )
        owner = known[group[0]]
        for name in group[1:]:
            one = known[name]
            if one.shape != owner.shape or one.dtype != owner.dtype:
                raise ModelError(
                    what=f"'{name}' can't be tied to '{group[0]}'",
                    expected=f"{owner.dtype} {list(owner.shape)}",
                    got=f"{one.dtype} {list(one.shape)}",
                )
            parent, _, leaf = name.rpartition(".")
            setattr(module.get_submodule(parent), leaf, owner)


def owners(module: nn.Module) -> dict[str, str]:
    """Every parameter name to the first name of the same Parameter object."""
    first: dict[int, str] = {}
    return {
        name: first.setdefault(id(parameter), name)
        for name, parameter in module.named_parameters(remove_duplicate=False)
    }
