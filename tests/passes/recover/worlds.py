"""A net to recover, the data it is recovered on, and options for tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from megacompile.models.forms import Eager
from megacompile.models.tensors import Feeds
from tests.passes.context import example
from tests.passes.models import dim, make_eager, tensor

WIDTH, CLASSES = 16, 5
DATA = """
import numpy as np

def batches():
    random = np.random.default_rng(0)
    x = random.standard_normal((256, 16)).astype(np.float32)
    yield {"x": x, "label": x[:, :5].argmax(1), "gate": (x > -1.5).astype(np.int64)}

def loss(outputs, batch):
    import torch.nn.functional as F
    return F.cross_entropy(outputs, batch["label"])

def broken(outputs, batch):
    return outputs

def one():
    yield {"x": np.ones((1, 16), dtype=np.float32)}

def other_names():
    yield {"y": np.ones((8, 16), dtype=np.float32)}

def infinite():
    yield {"x": np.full((64, 16), np.inf, dtype=np.float32)}
"""


class Net(nn.Module):
    """Two blocks of one kind that a recovery can share, with dropout and a normalization."""

    def __init__(self, norm: Callable[[int], nn.Module] = nn.BatchNorm1d) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 32), nn.ReLU(), nn.Linear(32, WIDTH)) for _ in range(2)
        )
        self.drop, self.norm = nn.Dropout(0.5), norm(WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = x + block(x)
        return self.head(self.drop(self.norm(x)))


def net() -> Eager:
    """The net with some running mean."""
    torch.manual_seed(0)
    model = make_eager(Net(), {"x": tensor("batch", WIDTH)}, {"batch": dim(1, 8, 512)}, ["logits"])
    with torch.no_grad():
        model.module.norm.running_mean.normal_()  # type: ignore[union-attr, operator]
    return model


def of_layer_norm() -> Eager:
    """The net without batch statistics, for which torchao looks long for what they fold into."""
    torch.manual_seed(0)
    model = Net(nn.LayerNorm)
    with torch.no_grad():
        for one in model.modules():
            if isinstance(one, nn.Linear):
                one.weight[0, 0] *= 8  # an outlier, as trained weights have, stretches the grid
    return make_eager(model, {"x": tensor("batch", WIDTH)}, {"batch": dim(1, 8, 512)}, ["logits"])


def spoiled(model: Eager, size: float = 0.15) -> Eager:
    """The model with noise on its weights: what a lossy pass leaves."""
    own = model.copy()
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in own.module.parameters():
            parameter.add_(torch.randn_like(parameter) * size)
    return own


def recover(**options: Any) -> dict[str, Any]:
    """Options of a short run, with changes."""
    return {
        "batches": "data.py:batches",
        "steps": 60,
        "batch_size": 64,
        "optimizer": {"adamw": {"lr": 1e-2, "weight_decay": 0.0}},
        **options,
    }


def probe(model: Eager) -> Feeds:
    """Inputs that no run trains on."""
    return example(model.signature, {"batch": 200}, seed=5)


def batches() -> Iterator[dict[str, Any]]:
    """What the data's own hook yields."""
    scope: dict[str, Any] = {}
    exec(DATA, scope)
    return scope["batches"]()
