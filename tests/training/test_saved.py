"""How many saved tensors compression takes, and why the others stay."""

from __future__ import annotations

import torch
from torch import nn

from megacompile.training.recipe import Compression
from megacompile.training.saved import count_saved
from tests.training.toy import batches_of, make_form


class Net(nn.Module):
    """A layer, and a mask of minus infinities."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(64, 64), nn.Linear(64, 10)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        hidden = self.layer(image.flatten(1)).square()
        scale = torch.where(hidden.detach() < 0, -torch.inf, 2.0)
        scale = torch.cat([scale[:, :-1], torch.full_like(scale[:, :1], torch.inf)], 1)
        return self.head(torch.nan_to_num(hidden * scale, posinf=1.0))


def test_reasons_are_counted() -> None:
    form = make_form(Net(), accumulate=1)
    batch = next(batches_of(form))
    packed, kept = count_saved(form.step(), batch, Compression(minimum_elements=500))
    assert packed >= 3, "the image, what is squared, and what goes into the head"
    assert kept["has an infinity or NaN"] >= 1
    assert kept["a parameter or buffer"] >= 1
    assert kept["no float"] >= 1, "labels"
    none, kept = count_saved(form.step(), batch, Compression(minimum_elements=10**9))
    assert none == 0
    assert kept["small"] >= packed
