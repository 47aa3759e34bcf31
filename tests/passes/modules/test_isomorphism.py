"""Blocks correspond where their operators are wired alike."""

from __future__ import annotations

import torch
from megacompile_passes.modules.blocks import repeated_blocks
from megacompile_passes.modules.isomorphism import correspondence
from megacompile_passes.modules.wiring import record_wiring
from torch import nn


def test_a_swapped_wiring_is_no_isomorphism() -> None:
    class Difference(nn.Module):
        def __init__(self, swapped: bool) -> None:
            super().__init__()
            self.swapped, self.a, self.b = swapped, nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            first, second = self.a(x), torch.relu(self.b(x))
            return second - first if self.swapped else first - second

    net = nn.Sequential(Difference(False), Difference(True), Difference(False))
    wirings = record_wiring(net, lambda: net(torch.randn(2, 4)))
    assert correspondence(wirings["0"], wirings["1"]) is None
    assert correspondence(wirings["0"], wirings["2"]) == {
        n: n for n in ("a.weight", "a.bias", "b.weight", "b.bias")
    }
    assert repeated_blocks(net, wirings) == [("0", "2")]
