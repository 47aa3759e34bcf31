"""Times of blocks: alike ones alike, nested ones within, and products apart."""

from __future__ import annotations

import time

import torch
from torch import nn

from megacompile.training.times import recompute_times
from tests.training.toy import batches_of, make_form


class Slow(nn.Module):
    """A layer with a pause outside its matrix product."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.layer, self.seconds = nn.Linear(64, 64), seconds

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(self.seconds)
        return self.layer(x)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(Slow(0.004), Slow(0.008), nn.ReLU())
        self.head = nn.Linear(64, 10)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(image.flatten(1)))


def test_blocks_of_one_kind_get_their_mean_and_products_are_told_apart() -> None:
    form = make_form(Net(), accumulate=1)
    step, names = form.step(), ["blocks", "blocks.0", "blocks.1", "blocks.2"]
    found = recompute_times(step, names, step.first_piece(next(batches_of(form))))
    assert found.whole["blocks.0"] == found.whole["blocks.1"] >= 6
    assert found.whole["blocks"] >= 12
    assert found.whole["blocks.2"] < found.whole["blocks.0"]
    assert set(found.selective) == {"blocks", "blocks.0", "blocks.1"}, "a ReLU has no product"
    assert found.selective["blocks.0"] > 5, "the pause is no product"
    assert not any(one._forward_hooks or one._forward_pre_hooks for one in step.module.modules())
