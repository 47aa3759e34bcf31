"""The spec's optimizer: its kind, its options, over what is trained."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from megacompile.errors import ModelError
from megacompile.training.optimizers import make_optimizer
from tests.training.toy import make_train


@pytest.mark.parametrize(
    ("choice", "kind", "option"),
    [
        ({"adamw": {"lr": 0.01, "weight_decay": 0.3}}, torch.optim.AdamW, ("weight_decay", 0.3)),
        ({"adam": {"lr": 0.01, "betas": [0.5, 0.6]}}, torch.optim.Adam, ("betas", (0.5, 0.6))),
        ({"sgd": {"lr": 0.01, "momentum": 0.9}}, torch.optim.SGD, ("momentum", 0.9)),
    ],
)
def test_the_kind_and_its_options(choice: dict[str, Any], kind: type, option: Any) -> None:
    found = make_optimizer(nn.Linear(2, 2), make_train(optimizer=choice))
    assert type(found) is kind
    (group,) = found.param_groups
    assert group["lr"] == 0.01
    value = group[option[0]]
    assert (tuple(value) if isinstance(value, list) else value) == option[1]


def test_only_what_is_trained_and_tied_parameters_once() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    module[1].weight = module[0].weight
    module[1].bias.requires_grad = False
    found = make_optimizer(module, make_train())
    assert found.param_groups[0]["params"] == [module[0].weight, module[0].bias]
    module.requires_grad_(False)
    with pytest.raises(ModelError, match="no parameter to train"):
        make_optimizer(module, make_train())
