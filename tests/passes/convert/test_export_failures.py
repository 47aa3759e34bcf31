"""What can't be captured is said in terms of the code and the spec."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from megacompile.errors import ModelError
from tests.passes import models
from tests.passes.convert.conversions import export
from tests.passes.models import dim, make_eager, tensor


def test_a_branch_on_values_names_the_line(tmp_path: Path) -> None:
    model = make_eager(models.Branch(), {"x": tensor("batch", 4)}, {"batch": dim(1, 2, 4)})
    with pytest.raises(ModelError, match=r"models\.py:\d+: the model branches[\s\S]*torch\.cond"):
        export(model, tmp_path)


class Narrow(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if x.shape[0] < 5 else x + 1


def test_a_narrowed_dim_is_refused(tmp_path: Path) -> None:
    model = make_eager(Narrow(), {"x": tensor("batch", 4)}, {"batch": dim(1, 2, 16)})
    with pytest.raises(ModelError, match=r"dim 'batch'[\s\S]*1 <= batch <= 16"):
        export(model, tmp_path)
