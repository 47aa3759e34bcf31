"""Frozen TorchScript: where its graph can be rewritten, every weight a constant of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def frozen_copy(module: torch.jit.ScriptModule) -> torch.jit.ScriptModule:
    """A frozen module with a graph of its own; the given one, frozen or not, stays as it is."""
    import torch
    from torch.jit._recursive import wrap_cpp_module

    # torch.jit.freeze refuses a module that is frozen already.
    return wrap_cpp_module(torch._C._freeze_module(module._c, [], True, False))
