"""Modules whose activations are computed again in the backward pass.

The module keeps its name, its state dict and its hooks: only its `forward` is replaced, by one
that calls the bound forward it had (never `module(...)`, which would run hooks twice).
Non-reentrant: keyword, None and nested arguments and outputs pass through; random and autocast
state are restored for the recomputation, so that dropout drops the same values.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn
from torch.utils import checkpoint as torch_checkpoint

from megacompile.errors import ModelError, did_you_mean
from megacompile.training.products import is_product
from megacompile.training.recipe import Checkpoint, Policy

Context = Callable[[], AbstractContextManager[Any]]
MARK = "_megacompile_checkpoint"


def apply_checkpoints(
    module: nn.Module, checkpoints: Sequence[Checkpoint], around: Context | None = None
) -> None:
    """Wrap the named modules' forwards in place. `around` is entered while recomputing.

    Raises:
        ModelError: a name is no module, or one module is named twice (by two of its names).
    """
    known = dict(module.named_modules(remove_duplicate=False))
    seen: dict[int, str] = {}
    for one in checkpoints:
        if one.module not in known:
            raise ModelError(
                what=f"a checkpoint names '{one.module}', which is no module",
                remedy=did_you_mean(one.module, known),
            )
        target = known[one.module]
        if id(target) in seen:
            continue  # one module under two names: it is wrapped already
        seen[id(target)] = one.module
        forward = target.forward
        setattr(target, MARK, forward)
        target.forward = functools.partial(_checkpointed, forward, one.policy, around)


def remove_checkpoints(module: nn.Module) -> None:
    """Give all modules the forward they had."""
    for one in module.modules():
        if MARK in one.__dict__:
            delattr(one, MARK)
            one.__dict__.pop("forward", None)


def _checkpointed(
    forward: Callable[..., Any], policy: Policy, around: Context | None, *args: Any, **kwargs: Any
) -> Any:
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    more: dict[str, Any] = {}
    if policy == "keep-matmul":
        selective = functools.partial(
            torch_checkpoint.create_selective_checkpoint_contexts, keep_matrix_products
        )
        more["context_fn"] = selective
    if around is not None and not torch.compiler.is_compiling():
        # A compiled region traces both runs under the same modes: only eager ones forget them.
        more["context_fn"] = functools.partial(_both, more.get("context_fn"), around)
    return torch_checkpoint.checkpoint(forward, *args, use_reentrant=False, **more, **kwargs)


def _both(
    first: Callable[[], tuple[Any, Any]] | None, around: Context
) -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
    forward, recompute = first() if first else (contextlib.nullcontext(), contextlib.nullcontext())
    return forward, _nested(around(), recompute)


@contextlib.contextmanager
def _nested(*contexts: AbstractContextManager[Any]) -> Any:
    with contextlib.ExitStack() as stack:
        for one in contexts:
            stack.enter_context(one)
        yield


def keep_matrix_products(context: Any, operator: Any, *args: Any, **kwargs: Any) -> Any:
    """The policy of `keep-matmul`: results of matrix products are kept, the rest is not."""
    policy = torch_checkpoint.CheckpointPolicy
    return policy.MUST_SAVE if is_product(operator) else policy.PREFER_RECOMPUTE
