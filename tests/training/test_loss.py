"""The user's loss: found, called as it is, and held to be a scalar."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from megacompile.errors import ModelError, SpecError
from megacompile.training.loss import as_scalar, load_loss
from tests.training.toy import SPECS, digits, make_train


def test_the_loss_is_the_users(tmp_path: Path) -> None:
    outputs, batch = torch.zeros(4, 10), {"label": torch.arange(4)}
    found = load_loss(make_train(), SPECS)(outputs, batch)
    assert float(found) == float(digits().loss(outputs, batch))
    with pytest.raises(SpecError, match="no such file"):
        load_loss(make_train(), tmp_path)


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_one_element_is_a_scalar(shape: tuple[int, ...]) -> None:
    assert as_scalar(torch.ones(shape, requires_grad=True), "l").shape == ()


@pytest.mark.parametrize(
    ("loss", "got"),
    [
        (torch.ones(2, requires_grad=True), r"shape \[2\]$"),
        (torch.ones(()), r"shape \[\] without a gradient"),
        (0.5, "float"),
    ],
)
def test_what_can_not_be_gone_back_from_is_described(loss: Any, got: str) -> None:
    with pytest.raises(ModelError, match=r"loss 'm\.py:l' gives no scalar") as caught:
        as_scalar(loss, "m.py:l")
    assert caught.value.got is not None
    assert re.search(got, caught.value.got)
