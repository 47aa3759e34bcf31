"""Operations and bytes of a torch module: one call, watched operator by operator."""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from megacompile.measure.operations import OperationCount

# Operators that read of a table only the rows they look up.
LOOKUPS = {
    torch.ops.aten.embedding.default,
    torch.ops.aten.index_select.default,
    torch.ops.aten.index.Tensor,
}


def count_module(
    module: torch.nn.Module, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
) -> OperationCount:
    """Count one call of a module, by running it once, in eval mode and without gradients.

    Training flags are as before afterwards, even after a failure. Whatever the module raises
    passes through.
    """
    traffic = _Traffic(module)
    counter = FlopCounterMode(display=False, custom_mapping=_extra_formulas())
    # no_grad, not inference_mode: there composite operators reach the counters undecomposed.
    with _eval_mode(module), _no_fast_path(), torch.no_grad(), counter, traffic:
        outputs = module(*args, **dict(kwargs or {}))
    ends = [leaf for leaf in tree_leaves((args, kwargs, outputs)) if torch.is_tensor(leaf)]
    return OperationCount(
        operations=int(counter.get_total_flops()),
        weight_bytes=traffic.weight_bytes(),
        activation_bytes=traffic.written,
        io_bytes=sum(leaf.numel() * leaf.element_size() for leaf in ends),
    )


@contextlib.contextmanager
def _eval_mode(module: torch.nn.Module) -> Iterator[None]:
    """Every submodule's own flag is put back: they may differ from each other."""
    flags = [(part, part.training) for part in module.modules()]
    # Plain flags, because exported modules forbid eval() and train().
    for part, _ in flags:
        part.training = False
    try:
        yield
    finally:
        for part, training in flags:
            part.training = training


@contextlib.contextmanager
def _no_fast_path() -> Iterator[None]:
    """Transformer layers unfused: the fused operator hides its matrix products."""
    enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(enabled)


def _extra_formulas() -> dict[Any, Any]:
    """Operators of the CPU that torch's counter doesn't know."""

    def attention(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
        batch, heads, rows, width = query
        return int(2 * batch * heads * rows * key[2] * (width + value[3]))

    def recurrent(source: Any, input_weight: Any, hidden_weight: Any, *_: Any, **__: Any) -> int:
        positions = math.prod(source[:-1])
        return int(2 * positions * (math.prod(input_weight) + math.prod(hidden_weight)))

    aten = torch.ops.aten
    return {
        aten._scaled_dot_product_flash_attention_for_cpu: attention,
        aten.mkldnn_rnn_layer: recurrent,
    }


class _Traffic(TorchDispatchMode):
    """Adds up the bytes that a call reads of the module's weights, and all that it writes."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        tensors = [*module.parameters(), *module.buffers()]
        # Keyed by storage: tied weights and views of one weight are read once.
        self.weights = {self.storage(tensor): self.size(tensor) for tensor in tensors}
        self.touched: Counter[int] = Counter()
        self.written = 0

    @staticmethod
    def storage(tensor: torch.Tensor) -> int:
        return int(tensor.untyped_storage()._cdata)

    @staticmethod
    def size(tensor: torch.Tensor) -> int:
        return int(tensor.untyped_storage().nbytes())

    def weight_bytes(self) -> int:
        # Parts may be read by several operators, but no weight needs reading twice.
        return sum(min(count, self.weights[key]) for key, count in self.touched.items())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if torch.is_tensor(leaf)]
        sources = {self.storage(leaf) for leaf in tensors}
        results = [leaf for leaf in tree_leaves(result) if torch.is_tensor(leaf)]
        fresh = [leaf for leaf in results if self.storage(leaf) not in sources]
        size = sum(leaf.numel() * leaf.element_size() for leaf in fresh)
        self.written += size
        if fresh or not results:  # a mere view of a weight doesn't read it
            for leaf in tensors:
                if (key := self.storage(leaf)) in self.weights:
                    part = leaf.numel() * leaf.element_size()
                    self.touched[key] += size if func in LOOKUPS else part
        return result
