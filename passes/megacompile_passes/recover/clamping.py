"""Outputs of modules held within limits, by hooks that stay in the module and are exported."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from megacompile.errors import PassError
from megacompile.plan import select
from megacompile_passes.recover.hidden_states import first_tensor
from megacompile_passes.recover.option_groups import Clipping
from megacompile_passes.recover.students import Batch, EagerAnswers

SAMPLED = 1_000_000  # values of one module that a percentile is taken over


@dataclass(frozen=True)
class Clamp:
    """A forward hook; a class of the module's own file, so that a stored model finds it again."""

    limit: float

    def __call__(self, module: nn.Module, inputs: Any, output: Any) -> Any:
        return torch.clamp(output, -self.limit, self.limit)


def clamp_outputs(
    student: EagerAnswers, choice: Clipping, batches: Iterable[Batch]
) -> dict[str, float]:
    """Hang a clamp on every module that `choice` names; the limit of each.

    Raises:
        PassError: a selector matches nothing, or a module's output is no single tensor.
    """
    named = {name: one for name, one in student.module.named_modules() if name}
    chosen = sorted(select(choice.modules, list(named), "clip_activations.modules"))
    limits = _limits(_recorded(student, chosen, batches), choice)
    for name in chosen:
        named[name].register_forward_hook(Clamp(limits[name]))
    return limits


def _recorded(
    student: EagerAnswers, chosen: list[str], batches: Iterable[Batch]
) -> dict[str, list[torch.Tensor]]:
    """Absolute values of the modules' outputs."""
    values: dict[str, list[torch.Tensor]] = {name: [] for name in chosen}

    def keeping(name: str) -> Any:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            if not isinstance(output, torch.Tensor):
                raise PassError(
                    what=f"`clip_activations` can't hold the output of '{name}'",
                    expected="one tensor",
                    got=type(output).__name__,
                    remedy="name the modules inside it",
                )
            found = first_tensor(output)
            if found is not None:
                values[name].append(found.detach().abs().flatten().float())

        return hook

    handles = [student.module.get_submodule(n).register_forward_hook(keeping(n)) for n in chosen]
    try:
        with torch.no_grad():
            for batch in batches:
                student.answers(batch)
    finally:
        for handle in handles:
            handle.remove()
    silent = [name for name, found in values.items() if not found]
    if silent:
        raise PassError(
            what=f"'{silent[0]}' of `clip_activations` is never called with floating outputs",
            remedy="name another module",
        )
    return values


def _limits(values: Mapping[str, list[torch.Tensor]], choice: Clipping) -> dict[str, float]:
    if choice.limit is not None:
        return dict.fromkeys(values, choice.limit)
    assert choice.percentile is not None
    limits = {name: _percentile(found, choice.percentile) for name, found in values.items()}
    flat = [name for name, limit in limits.items() if limit <= 0]
    if flat:
        raise PassError(
            what=f"'{flat[0]}' gives zeros alone up to that percentile",
            expected="a percentile above which something lies",
            remedy="a higher `percentile`, or `limit`",
        )
    return limits


def _percentile(found: list[torch.Tensor], percentile: float) -> float:
    whole = torch.cat(found)
    whole = whole[:: max(1, len(whole) // SAMPLED)]
    at = max(1, round(len(whole) * percentile / 100))
    return float(whole.kthvalue(at).values)
