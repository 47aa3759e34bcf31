"""Autocast with islands of float32: normalization, softmax and losses whatever the device does.

Autocast on CUDA widens these by itself; on CPU it lets them run in the narrow dtype.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

NAMES = (
    "softmax",
    "log_softmax",
    "softmin",
    "gumbel_softmax",
    "layer_norm",
    "rms_norm",
    "batch_norm",
    "group_norm",
    "instance_norm",
    "local_response_norm",
    "normalize",
    "cross_entropy",
    "nll_loss",
    "mse_loss",
    "l1_loss",
    "smooth_l1_loss",
    "huber_loss",
    "kl_div",
    "poisson_nll_loss",
    "gaussian_nll_loss",
    "binary_cross_entropy_with_logits",
    "cosine_embedding_loss",
    "triplet_margin_loss",
    "soft_margin_loss",
    "ctc_loss",
    "cosine_similarity",
)
WIDE = frozenset(
    function
    for owner in (F, torch, torch.Tensor)
    for name in NAMES
    if (function := getattr(owner, name, None)) is not None
)
NARROW = (torch.float16, torch.bfloat16)


class Float32Islands(TorchFunctionMode):
    """Functions of `WIDE` get their 16-bit tensors as float32 and run without autocast."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.device = device

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func not in WIDE:
            return func(*args, **kwargs)
        args, kwargs = widened((args, kwargs))
        with torch.autocast(self.device, enabled=False):
            return func(*args, **kwargs)


def widened(value: Any) -> Any:
    """Every 16-bit float tensor in a nested value as float32."""
    return pytree.tree_map_only(
        torch.Tensor, lambda t: t.float() if t.dtype in NARROW else t, value
    )


@contextlib.contextmanager
def mixed(dtype: str | None, device: str) -> Iterator[None]:
    """Autocast to a dtype with float32 islands; nothing for None."""
    if dtype is None:
        yield
        return
    with torch.autocast(device, dtype=getattr(torch, dtype)), Float32Islands(device):
        yield
