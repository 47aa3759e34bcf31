"""The spec's optimizer over the parameters that are trained."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from megacompile.errors import ModelError
from megacompile.spec import Optimizer, Train


def make_optimizer(module: nn.Module, train: Train) -> torch.optim.Optimizer:
    """The optimizer of the spec over all parameters that are trained, tied ones once.

    Raises:
        ModelError: no parameter is trained.
    """
    parameters = [p for p in module.parameters() if p.requires_grad]
    if not parameters:
        raise ModelError(
            what="the model has no parameter to train",
            where="model.python",
            expected="at least one parameter with requires_grad",
        )
    return optimizer_of(parameters, train.optimizer)


def optimizer_of(parameters: list[nn.Parameter], choice: Optimizer) -> torch.optim.Optimizer:
    """The optimizer of a spec over some parameters."""
    classes: dict[str, Any] = {
        "adamw": torch.optim.AdamW,
        "adam": torch.optim.Adam,
        "sgd": torch.optim.SGD,
    }
    made: torch.optim.Optimizer = classes[choice.kind](parameters, **choice.options.model_dump())
    return made
