"""Which blocks can be checkpointed: inside others, once, and not those that are already."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from megacompile.measure.training.comparison import compare_traces, trace
from megacompile.training.recipe import Checkpoint, Recipe
from tests.passes.training.checkpoint.steps import chosen, run, share
from tests.training.toy import batches_of, make_form


def test_blocks_inside_blocks_are_candidates_and_exclusive(tmp_path: Path) -> None:
    class Part(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.wide, self.narrow = nn.Linear(64, 256), nn.Linear(256, 64)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.narrow(torch.tanh(self.wide(x)).square())

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = Part(), Part()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.b(self.a(x))

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.enter = nn.Linear(8, 64)
            self.layers = nn.ModuleList(Outer() for _ in range(3))
            self.head = nn.Linear(64, 10)

        def forward(self, image: torch.Tensor) -> torch.Tensor:
            x = self.enter(image)
            for layer in self.layers:
                x = layer(x)
            return self.head(x.mean(1))

    torch.manual_seed(0)
    form = make_form(Net(), batch_size=128)
    result = run(tmp_path, form, memory=0.6)
    names = chosen(result)
    assert {c.block for c in result.model.recipe.costs} == {
        "layers.0",
        "layers.0.a",
        "layers.0.b",
        "layers.1",
        "layers.1.a",
        "layers.1.b",
        "layers.2",
        "layers.2.a",
        "layers.2.b",
    }
    assert not any(a != b and a.startswith(f"{b}.") for a in names for b in names)
    assert share(form, result.model.recipe) <= 0.6


def test_what_is_checkpointed_already_is_left_alone(tmp_path: Path) -> None:
    form = make_form(recipe=Recipe(checkpoints=(Checkpoint(module="blocks.1"),)))
    result = run(tmp_path, form, blocks=["blocks.0", "blocks.1"])
    assert chosen(result) == ["blocks.1", "blocks.0"]
    assert result.sites.skipped == [("blocks.1", "'blocks.1' is checkpointed already")]


def test_one_module_under_two_names_is_wrapped_once(tmp_path: Path) -> None:
    form = make_form()
    blocks: Any = form.module.blocks
    blocks[3] = blocks[0]
    result = run(tmp_path, form, blocks=["blocks.0", "blocks.3"])
    assert chosen(result) == ["blocks.0"]
    plain = trace(form.step(), batches_of(form), 2)
    found = compare_traces(plain, trace(result.model.step(), batches_of(form), 2))
    assert found.relative_max < 1e-5
