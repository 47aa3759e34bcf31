"""What a module's layers take, and so what its inputs may be."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from megacompile.commands.sizes import Shape, Tensor

if TYPE_CHECKING:
    import torch

MASK = re.compile(r"mask", re.IGNORECASE)
IDS = re.compile(r"ids$|^ids|token|index|indices|words", re.IGNORECASE)


@dataclass(frozen=True)
class Layer:
    """A layer that tells what it takes: `size` is a table's rows, or the features of an input."""

    kind: str
    size: int
    batch_first: bool = True


def layers_of(module: torch.nn.Module) -> Iterator[Layer]:
    """Layers whose first weight tells what they take."""
    for one in module.modules():
        kinds = [getattr(one, "original_name", None), *(c.__name__ for c in type(one).__mro__)]
        for kind, reads in _TAKES.items():
            if kind in kinds and (size := reads(one)) is not None:
                yield Layer(kind, size, bool(getattr(one, "batch_first", False)))
                break


def _columns(one: Any) -> int | None:
    weight = getattr(one, "weight", None)
    return int(weight.shape[1]) * int(getattr(one, "groups", 1)) if weight is not None else None


def _rows(one: Any) -> int | None:
    weight = getattr(one, "weight", None)
    return int(weight.shape[0]) if weight is not None else None


def _recurrent(one: Any) -> int | None:
    weight = getattr(one, "weight_ih_l0", None)
    return int(weight.shape[1]) if weight is not None else None


_TAKES: dict[str, Any] = {
    "Embedding": _rows,
    "EmbeddingBag": _rows,
    "Conv1d": _columns,
    "Conv2d": _columns,
    "Conv3d": _columns,
    "Linear": _columns,
    "LSTM": _recurrent,
    "GRU": _recurrent,
    "RNN": _recurrent,
    "MultiheadAttention": lambda one: getattr(one, "embed_dim", None),
    "BatchNorm1d": _rows,
    "BatchNorm2d": _rows,
    "LayerNorm": _rows,
}


def candidates(name: str, number: int, layers: Sequence[Layer]) -> Iterator[Tensor]:
    """Guesses for the input of this name, the likeliest first."""
    tables = [layer for layer in layers if layer.kind.startswith("Embedding")]
    kinds = list(dict.fromkeys(layers))
    if tables and (MASK.search(name) or name == "token_type_ids"):
        yield Tensor(name, ("batch", "seq"), "int64", (0, 1))
        yield Tensor(name, ("batch", "seq"), "bool")
        yield Tensor(name, ("batch", "seq"), "float32", (0, 1))
    if tables and (IDS.search(name) or kinds[0] in tables):
        # With a table per input (users, items), the tables come in the inputs' order.
        own = tables[min(number, len(tables) - 1)]
        smallest = min(tables, key=lambda layer: layer.size)
        for table in dict.fromkeys([own, tables[0], smallest]):
            yield Tensor(name, ("batch", "seq"), "int64", (0, table.size - 1))
            yield Tensor(name, ("batch",), "int64", (0, table.size - 1))
    for layer in kinds[:4]:
        for shape in _shapes(layer):
            yield Tensor(name, shape)
    if not layers:
        yield Tensor(name, ("batch", "features"))
        yield Tensor(name, ("batch", 3, "height", "width"))


def _shapes(layer: Layer) -> list[Shape]:
    n = layer.size
    sequence: Shape = ("batch", "seq", n) if layer.batch_first else ("seq", "batch", n)
    known: dict[str, list[Shape]] = {
        "Conv1d": [("batch", n, "length")],
        "Conv2d": [("batch", n, "height", "width")],
        "Conv3d": [("batch", n, "depth", "height", "width")],
        "Linear": [("batch", n), ("batch", "seq", n)],
        "LSTM": [sequence],
        "GRU": [sequence],
        "RNN": [sequence],
        "MultiheadAttention": [sequence],
        "BatchNorm1d": [("batch", n), ("batch", n, "length")],
        "BatchNorm2d": [("batch", n, "height", "width")],
        "LayerNorm": [("batch", n), ("batch", "seq", n)],
    }
    return known.get(layer.kind, [])
