"""The exporter's failures name the operator."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from megacompile.errors import PassError
from tests.passes.convert.conversions import to_onnx
from tests.passes.models import dim, make_eager, tensor


class Odd(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Module()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.special.bessel_j0(x)


def test_an_operator_that_onnx_lacks_is_named(tmp_path: Path) -> None:
    model = make_eager(Odd(), {"x": tensor("batch", 4)}, {"batch": dim(1, 2, 4)})
    with pytest.raises(PassError, match="bessel_j0"):
        to_onnx(model, tmp_path)
