"""torch.compile in a training step: what is compiled, and the settings that hold meanwhile."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from megacompile.errors import ModelError, did_you_mean
from megacompile.training.recipe import Compile


def compiled(
    forward_loss: Callable[..., Any], module: nn.Module, choice: Compile | None
) -> Callable[..., Any]:
    """Forward and loss compiled as one; or, for single blocks, as it is, with these blocks of the
    module compiled in place.

    Raises:
        ModelError: a named block is no module.
    """
    if choice is None:
        return forward_loss
    if choice.what == "step":
        whole: Callable[..., Any] = torch.compile(forward_loss)
        return whole
    known = dict(module.named_modules())
    for name in choice.modules:
        if name not in known:
            raise ModelError(
                what=f"compile names '{name}', which is no module",
                remedy=did_you_mean(name, known),
            )
        known[name].compile()
    return forward_loss


@contextlib.contextmanager
def compiler_settings(choice: Compile | None, reproducible: bool) -> Iterator[None]:
    """The compiler's settings hold while it runs: at the first call, and when it recompiles.

    `reproducible` makes compiled code draw eager's random numbers.
    """
    if choice is None:
        yield
        return
    import torch._functorch.config as functorch
    import torch._inductor.config as inductor

    with contextlib.ExitStack() as stack:
        share = choice.activation_memory_budget
        if share is not None:
            budget: Any = functorch.patch(activation_memory_budget=share)
            stack.enter_context(budget)
        if reproducible:
            stack.enter_context(inductor.patch(fallback_random=True))
        yield
