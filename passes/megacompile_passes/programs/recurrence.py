"""Keep LSTM and GRU whole while a program is captured, so that their length stays symbolic."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any


@contextlib.contextmanager
def symbolic_recurrence() -> Iterator[None]:
    """Replace torch's unrolling of LSTM and GRU by their output shapes.

    To learn shapes, torch unrolls the loop over the sequence and so fixes its length
    (microsoft/onnxruntime#19270 shows where that ends). The operators stay in the graph either
    way. Only for tracing: inside, these operators have no values.
    """
    import torch
    from torch._C import DispatchKey

    shapes: dict[Any, Callable[..., Any]] = {
        torch.ops.aten.gru.input: _gru,
        torch.ops.aten.lstm.input: _lstm,
    }
    keys = (DispatchKey.Autograd, DispatchKey.CompositeImplicitAutograd, DispatchKey.Meta)
    table: dict[Any, Any] = torch._decomp.decomposition_table
    unrolling = {op: (dict(op.py_kernels), table.get(op)) for op in shapes}
    for op, shape in shapes.items():
        op.py_kernels.update(dict.fromkeys(keys, shape))
        if op in table:
            table[op] = shape
        op._dispatch_cache.clear()
    try:
        yield
    finally:
        for op, (kernels, decomposition) in unrolling.items():
            op.py_kernels.clear()
            op.py_kernels.update(kernels)
            if decomposition is not None:
                table[op] = decomposition
            op._dispatch_cache.clear()


# Arguments after the state, as in aten's schemas: params, has_biases, num_layers, dropout, train,
# bidirectional, batch_first.
def _gru(source: Any, state: Any, *rest: Any) -> Any:
    return _output(source, state, rest[5]), state.new_empty(state.shape)


def _lstm(source: Any, states: Any, *rest: Any) -> Any:
    hidden, cell = states
    return (
        _output(source, hidden, rest[5]),
        hidden.new_empty(hidden.shape),
        cell.new_empty(cell.shape),
    )


def _output(source: Any, hidden: Any, bidirectional: bool) -> Any:
    width = hidden.shape[-1] * (2 if bidirectional else 1)
    return source.new_empty((*source.shape[:2], width))
