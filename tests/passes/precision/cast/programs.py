"""A small module to cast, and the pass on its program."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import torch
from megacompile_passes.convert.export import Export
from megacompile_passes.precision.cast.exported import CastExported
from torch import nn

from megacompile.models.forms import Eager, Exported
from megacompile.models.tensors import Feeds
from megacompile.plan.passes import Result
from tests.passes.context import make_context
from tests.passes.models import dim, make_eager, tensor

DType = Literal["bfloat16", "float16"]


def cast(
    model: Eager,
    tmp_path: Path,
    dtype: DType = "float16",
    data: Iterable[Feeds] | None = None,
    **options: Any,
) -> Result[Exported]:
    context = make_context(tmp_path, model.signature, data)
    exported = Export().run(model, context).model
    before = exported.size_bytes()
    result = CastExported(dtype=dtype, **options).run(exported, context)
    assert exported.size_bytes() == before
    return result


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.second = nn.Linear(16, 64), nn.LayerNorm(64), nn.Linear(64, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.second(self.norm(self.first(x)).relu()), -1)


def block() -> Eager:
    return make_eager(Block(), {"x": tensor("batch", 16)}, {"batch": dim(1, 3, 8)})
