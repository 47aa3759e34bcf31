"""Tensors of a module become one object."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from megacompile.models.torchmodules import copy_module
from tests.passes import models
from tests.passes.structure.share_parameters.stacks import WIDTH, eager, share


def test_recurrent_cells_keep_their_flat_weights(tmp_path: Path) -> None:
    class Cells(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cells = nn.ModuleList(nn.GRU(WIDTH, WIDTH, batch_first=True) for _ in range(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x[:, None]
            for cell in self.cells:
                x = cell(x)[0]
            return x[:, 0]

    model = eager(Cells())
    module: Any = share(model, tmp_path, every=2).model.module
    first, second = module.cells
    assert all(a is b for a, b in zip(first._flat_weights, second._flat_weights, strict=True))
    expected: Any = copy_module(model.module)
    expected.cells[1].load_state_dict(expected.cells[0].state_dict())
    models.assert_same(model.with_module(module), model.with_module(expected))
