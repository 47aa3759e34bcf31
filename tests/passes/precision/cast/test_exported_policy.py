"""What stays in float32: what is kept, what leaves the range, masks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from megacompile.errors import PassError
from tests.passes.models import dim, make_eager, tensor
from tests.passes.precision.cast.programs import DType, block, cast


def test_kept_operators(tmp_path: Path) -> None:
    result = cast(block(), tmp_path, keep=["second"])
    assert ("second (linear_1)", "kept by the spec") in result.sites.skipped
    with pytest.raises(PassError, match="'secnd' of `keep`"):
        cast(block(), tmp_path, keep=["secnd"])
    with pytest.raises(PassError, match="changed nothing"):
        cast(block(), tmp_path, keep=["*"])


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
