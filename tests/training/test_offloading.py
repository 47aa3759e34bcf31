"""Saved tensors in host memory: nothing on a CPU, the same gradients and less memory on CUDA."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from megacompile.training.offloading import offloading
from megacompile.training.recipe import Offload

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(m for _ in range(6) for m in (nn.Linear(256, 256), nn.GELU())))


def gradients(net: nn.Module, x: torch.Tensor, choice: Offload | None) -> list[torch.Tensor]:
    if choice is None:
        return list(torch.autograd.grad(net(x).square().sum(), list(net.parameters())))
    with offloading(choice, net):
        loss = net(x).square().sum()
    return list(torch.autograd.grad(loss, list(net.parameters())))


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=on_gpu)])
@pytest.mark.parametrize("modules", [(), ("0", "3")])
def test_gradients_are_bit_equal(device: str, modules: tuple[str, ...]) -> None:
    net = network().to(device)
    x = torch.randn(512, 256, device=device)
    choice = Offload(minimum_elements=0, modules=modules)
    for plain, moved in zip(gradients(net, x, None), gradients(net, x, choice), strict=True):
        assert torch.equal(plain, moved)
    assert not any(one._forward_hooks or one._forward_pre_hooks for one in net.modules())


@on_gpu
def test_the_device_holds_less() -> None:
    net = network().to("cuda")
    x = torch.randn(8192, 256, device="cuda")

    def held(context: Any) -> int:
        before = torch.cuda.memory_allocated()
        with context:
            loss = net(x).square().sum()
        torch.cuda.synchronize()
        size = torch.cuda.memory_allocated() - before
        loss.backward()
        return size

    plain = held(offloading(Offload(minimum_elements=2**40), net))
    assert held(offloading(Offload(minimum_elements=0), net)) < 0.3 * plain
