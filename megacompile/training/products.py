"""Matrix products as they run: which operators they are, and a watcher of their results."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

MATRIX_PRODUCTS = (
    "mm",
    "addmm",
    "bmm",
    "baddbmm",
    "addbmm",
    "linear",
    "convolution",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_flash_attention_for_cpu",
)


def is_product(operator: Any) -> bool:
    """Whether an operator (an `OpOverload`) is a matrix product, convolution or attention."""
    return operator.name().removeprefix("aten::").split(".")[0] in MATRIX_PRODUCTS


class WatchedProducts(TorchDispatchMode):
    """While entered, `seen(results, seconds)` is called after every matrix product."""

    def __init__(self, seen: Callable[[Any, float], None], device: str = "cpu") -> None:
        super().__init__()
        self.seen, self.device = seen, device

    def __torch_dispatch__(
        self,
        operator: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if not is_product(operator):
            return operator(*args, **(kwargs or {}))
        start = self._now()
        results = operator(*args, **(kwargs or {}))
        self.seen(results, self._now() - start)
        return results

    def _now(self) -> float:
        if self.device != "cpu":
            torch.cuda.synchronize()
        return time.perf_counter()
