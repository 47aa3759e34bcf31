"""Matrix products as they run, and no other operator."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from megacompile.training.products import WatchedProducts, is_product

ATEN = torch.ops.aten


@pytest.mark.parametrize(
    ("operator", "expected"),
    [
        (ATEN.mm.default, True),
        (ATEN.addmm.out, True),
        (ATEN.convolution.default, True),
        (ATEN._scaled_dot_product_flash_attention_for_cpu.default, True),
        (ATEN.mul.Tensor, False),
        (ATEN.native_layer_norm.default, False),
        (ATEN.convolution_backward.default, False),
    ],
)
def test_which_operators_are_products(operator: Any, expected: bool) -> None:
    assert is_product(operator) is expected


def test_results_are_seen_and_stay_as_they_were() -> None:
    net = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    x = torch.ones(5, 4)
    seen: list[tuple[tuple[int, ...], float]] = []
    with WatchedProducts(lambda results, seconds: seen.append((tuple(results.shape), seconds))):
        watched = net(x)
    assert [shape for shape, _ in seen] == [(5, 3), (5, 2)]
    assert all(0 <= seconds < 10 for _, seconds in seen)
    assert torch.equal(watched, net(x))
    assert len(seen) == 2, "outside nothing is watched"
