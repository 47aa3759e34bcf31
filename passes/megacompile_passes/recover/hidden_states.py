"""Hidden states: what named modules of a model give while it answers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from megacompile.plan import select
from megacompile_passes.recover.option_groups import Distill


def hidden_modules(module: nn.Module, choice: Distill | None) -> list[str]:
    """The modules that `distill.hidden` names.

    Raises:
        PassError: a selector matches nothing.
    """
    if choice is None or not choice.hidden:
        return []
    names = [name for name, _ in module.named_modules() if name]
    return sorted(select(choice.hidden, names, "distill.hidden"))


@contextlib.contextmanager
def kept_outputs(modules: Mapping[str, nn.Module]) -> Iterator[dict[str, list[torch.Tensor]]]:
    """Collect what modules return while the block runs."""
    found: dict[str, list[torch.Tensor]] = {name: [] for name in modules}

    def keeping(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            tensor = first_tensor(output)
            if tensor is not None:
                found[name].append(tensor)

        return hook

    handles = [module.register_forward_hook(keeping(name)) for name, module in modules.items()]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def first_tensor(value: Any) -> torch.Tensor | None:
    """A module's output, or the first floating tensor of a nested one."""
    tensors = (one for one in pytree.tree_leaves(value) if isinstance(one, torch.Tensor))
    return next((one for one in tensors if one.is_floating_point()), None)
