"""`cast` on an exported program: 16 bit where it holds, float32 where ranges say so."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from megacompile_passes.convert.export import Export
from megacompile_passes.convert.to_onnx import ToOnnx
from megacompile_passes.precision.cast.exported import CastExported
from torch import nn

from megacompile.errors import PassError
from megacompile.models.forms import Eager, Exported
from megacompile.models.tensors import Feeds
from megacompile.plan.passes import Result
from tests.passes import models
from tests.passes.context import example, make_context
from tests.passes.models import dim, make_eager, tensor

DType = Literal["bfloat16", "float16"]


def cast(
    model: Eager,
    tmp_path: Path,
    dtype: DType = "float16",
    data: Iterable[Feeds] | None = None,
    **options: Any,
) -> Result[Exported]:
    context = make_context(tmp_path, model.signature, data)
    exported = Export().run(model, context).model
    before = exported.size_bytes()
    result = CastExported(dtype=dtype, **options).run(exported, context)
    assert exported.size_bytes() == before
    return result


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.second = nn.Linear(16, 64), nn.LayerNorm(64), nn.Linear(64, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.second(self.norm(self.first(x)).relu()), -1)


def block() -> Eager:
    return make_eager(Block(), {"x": tensor("batch", 16)}, {"batch": dim(1, 3, 8)})


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


def test_kept_operators(tmp_path: Path) -> None:
    result = cast(block(), tmp_path, keep=["second"])
    assert ("second (linear_1)", "kept by the spec") in result.sites.skipped
    with pytest.raises(PassError, match="'secnd' of `keep`"):
        cast(block(), tmp_path, keep=["secnd"])
    with pytest.raises(PassError, match="changed nothing"):
        cast(block(), tmp_path, keep=["*"])


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


class Mask(nn.Module):
    """C23: the smallest float32 as a mask."""

    def forward(self, scores: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
        return torch.softmax(scores * 1.5 + (1 - keep) * torch.finfo(torch.float32).min, -1)


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_mask_out_of_range(dtype: DType, masked: bool, tmp_path: Path) -> None:
    model = make_eager(
        Mask(), {"scores": tensor("batch", 4), "keep": tensor("batch", 4)}, {"batch": dim(1, 3, 8)}
    )
    feeds = {
        "scores": np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32),
        "keep": np.array([[1, 1, 0, 0], [1] * 4, [0] * 4], np.float32),
    }
    seen = feeds if masked else {**feeds, "keep": np.ones((3, 4), np.float32)}
    result = cast(model, tmp_path, dtype, [seen])
    assert any("stays in float32" in note for note in result.notes)
    got, expected = result.model.run(feeds)["output"], model.run(feeds)["output"]
    np.testing.assert_allclose(got, expected, atol=1e-2)


class MaskedAttention(nn.Module):
    def forward(self, q: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
        mask = (1 - keep)[:, None, :] * torch.finfo(torch.float32).min
        return nn.functional.scaled_dot_product_attention(q, q, q, mask)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_mask_out_of_range_into_attention(dtype: DType, tmp_path: Path) -> None:
    model = make_eager(
        MaskedAttention(),
        {"q": tensor("batch", 4, 8), "keep": tensor("batch", 4)},
        {"batch": dim(1, 3, 8)},
    )
    feeds = {
        "q": np.random.default_rng(0).standard_normal((2, 4, 8)).astype(np.float32),
        "keep": np.array([[1, 1, 0, 0], [1] * 4], np.float32),
    }
    result = cast(model, tmp_path, dtype, [feeds])
    got, expected = result.model.run(feeds)["output"], model.run(feeds)["output"]
    np.testing.assert_allclose(got, expected, atol=3e-2)


class RootMeanSquare(nn.Module):
    """C25: squares of numbers near 300."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 1.5 / (x * x).mean(-1, keepdim=True).sqrt()


def test_squares_out_of_range_stay_in_float32(tmp_path: Path) -> None:
    model = make_eager(RootMeanSquare(), {"x": tensor("batch", 64)}, {"batch": dim(1, 3, 8)})
    feeds = {"x": 300 * np.random.default_rng(0).standard_normal((2, 64)).astype(np.float32)}
    result = cast(model, tmp_path, "float16", [feeds])
    assert any("it reaches" in note for note in result.notes)
    assert "range" in [why for _, why in result.sites.skipped]
    got, expected = result.model.run(feeds)["output"], model.run(feeds)["output"]
    np.testing.assert_allclose(got, expected, atol=1e-2)


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
