"""Convolutions with normalization after them, and modules where something else looks."""

from __future__ import annotations

import torch
from torch import nn

from megacompile.models.forms import Eager
from tests.passes.models import dim, make_eager, tensor


def statistics(module: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    for one in module.modules():
        if isinstance(one, (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)):
            for value in (one.running_mean, one.bias):
                nn.init.normal_(value)  # type: ignore[arg-type]
            for value in (one.running_var, one.weight):
                nn.init.uniform_(value, 0.5, 2)  # type: ignore[arg-type]
    return module


CASES = [
    (nn.Conv1d(4, 6, 3), nn.BatchNorm1d(6), (4, 8)),
    (nn.Conv2d(4, 6, 3, groups=2, bias=False), nn.BatchNorm2d(6), (4, 8, 8)),
    (nn.Conv3d(4, 6, 3), nn.BatchNorm3d(6), (4, 5, 5, 5)),
    (nn.ConvTranspose2d(4, 6, 3, groups=2), nn.BatchNorm2d(6), (4, 5, 5)),
    (nn.ConvTranspose1d(4, 6, 3, bias=False), nn.BatchNorm1d(6), (4, 5)),
]


def sequence(conv: nn.Module, norm: nn.Module, shape: tuple[int, ...]) -> Eager:
    net = statistics(nn.Sequential(conv, norm, nn.ReLU()))
    return make_eager(net, {"x": tensor("batch", *shape)}, {"batch": dim(1, 2, 4)})


class Read(nn.Module):
    """The convolution's output is an output itself."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.conv(x)
        return y, self.bn(y)


class Shared(nn.Module):
    """Two convolutions of one weight, and one normalization after two convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three = (nn.Conv2d(3, 4, 3, bias=False) for _ in range(3))
        self.two.weight = self.one.weight
        self.bn, self.other = nn.BatchNorm2d(4), nn.BatchNorm2d(4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self.bn(self.one(x)), self.two(x), self.other(self.three(x)), self.other(self.one(x))


def read_elsewhere(module: nn.Module) -> Eager:
    return make_eager(statistics(module), {"x": tensor("batch", 3, 8, 8)}, {"batch": dim(1, 2, 4)})
