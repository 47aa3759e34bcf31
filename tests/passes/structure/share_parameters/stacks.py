"""Stacks of blocks that can share their parameters."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from megacompile_passes.structure.share_parameters.eager import ShareParametersEager
from torch import nn

from megacompile.models.forms import Eager
from megacompile.models.tensors import Feeds
from tests.passes.context import example, make_context
from tests.passes.models import dim, make_eager, tensor

WIDTH = 16


BLOCK = 2 * WIDTH + 32 * WIDTH + 32 + 32 * WIDTH + WIDTH
AROUND = 2 * (WIDTH * WIDTH + WIDTH)


class Block(nn.Module):
    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.scale = scale
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 32), nn.Linear(32, WIDTH)
        self.register_buffer("shift", torch.zeros(WIDTH))

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        y = self.down(torch.relu(self.up(self.norm(x)))) * self.scale + self.shift
        return x + y if mask is None else x + y * mask


class Stack(nn.Module):
    """Blocks that are called in different ways, and layers around them."""

    def __init__(self, count: int = 4, scales: tuple[float, ...] = ()) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(Block(*scales[i : i + 1]) for i in range(count))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.enter(x)
        for index, block in enumerate(self.blocks):
            x = block(x, mask=None) if index % 2 else block(x)
        return self.leave(x)


def eager(module: nn.Module) -> Eager:
    torch.manual_seed(0)
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.3)
    return make_eager(module, {"x": tensor("batch", WIDTH)}, {"batch": dim(1, 3, 8)})


def samples(model: Eager, count: int = 16) -> Iterator[Feeds]:
    return (example(model.signature, {"batch": 8}, seed) for seed in range(count))


def share(model: Eager, tmp_path: Path, **options: Any) -> Any:
    context = make_context(tmp_path, model.signature, lambda: samples(model))
    return ShareParametersEager(**{"mode": "group", **options}).run(model, context)
