"""`cast` on an exported program: 16 bit where it holds, float32 where ranges say so."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from megacompile_passes.convert.to_onnx import ToOnnx
from torch import nn

from megacompile.models.forms import Exported
from tests.passes import models
from tests.passes.context import example, make_context
from tests.passes.models import dim, make_eager, tensor
from tests.passes.precision.cast.programs import DType, block, cast


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_the_bytes_and_the_same_interface(dtype: DType, tmp_path: Path) -> None:
    model = block()
    untouched = models.Untouched(model.module)
    result = cast(model, tmp_path, dtype)
    assert result.model.size_bytes() < 0.6 * model.size_bytes()
    assert result.model.parameters() == model.parameters()
    assert sorted(why for _, why in result.sites.skipped) == ["normalization", "softmax"]
    assert result.sites.changed == 3
    models.assert_same(result.model, model, atol=3e-2)
    untouched.check()
    folder = tmp_path / "saved"
    folder.mkdir()
    result.model.save(folder)
    models.assert_same(Exported.load(folder, model.signature), model, atol=3e-2)
    made = ToOnnx().run(result.model, make_context(tmp_path, model.signature)).model
    models.assert_same(made, model, atol=3e-2)


def test_ties_are_kept(tmp_path: Path) -> None:
    model = models.tied()
    result = cast(model, tmp_path)
    assert result.model.size_bytes() == 128_000
    assert result.model.parameters() == 64_000
    models.assert_same(result.model, model, atol=5e-2)


def test_a_block_used_twelve_times_stays_one(tmp_path: Path) -> None:
    model = models.shared()
    result = cast(model, tmp_path, "bfloat16")
    assert result.model.size_bytes() == 526_848 / 2
    models.assert_same(result.model, model, atol=0.1, rtol=3e-2)


class InPlace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.inner(x)
        y[:, 0] = 2
        return y.relu_() + y.mean()


def test_updates_in_place(tmp_path: Path) -> None:
    model = make_eager(InPlace(), {"x": tensor("batch", 8)}, {"batch": dim(1, 3, 8)})
    models.assert_same(cast(model, tmp_path, "bfloat16").model, model, atol=3e-2)


def test_convolutions(tmp_path: Path) -> None:
    model = models.conv_net()
    models.assert_same(cast(model, tmp_path, "bfloat16").model, model, atol=3e-2)
    assert example(model.signature, {"batch": 1})["x"].dtype == np.float32
