"""TorchScript's answers are checked at two shapes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from megacompile.errors import MegacompileError, PassError
from tests.passes import models
from tests.passes.convert.conversions import mean, script
from tests.passes.models import dim, make_eager, tensor


def test_a_baked_size_is_noticed(tmp_path: Path) -> None:
    with pytest.raises(PassError, match="is wrong at width=9"):
        script(mean(), tmp_path, "trace")
    result = script(mean(), tmp_path)
    assert result.notes[0] == "compiled from source"
    models.assert_same(result.model, mean())


class Hopeless(nn.Module):
    def forward(self, x: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        return x.sum(-1) / int(x.shape[-1])


def test_when_neither_works_both_reasons_are_given(tmp_path: Path) -> None:
    model = make_eager(Hopeless(), {"x": tensor(2, "width")}, {"width": dim(2, 8, 32)})
    with pytest.raises(MegacompileError, match=r"neither[\s\S]*can't compile[\s\S]*is wrong"):
        script(model, tmp_path)
