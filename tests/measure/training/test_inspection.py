"""The plain step tried once: faults of loss, data and model by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from megacompile.errors import MegacompileError
from megacompile.measure.training.inspection import plain_form, try_plain_step
from megacompile.models import Eager, load_original
from megacompile.spec import Spec

MODEL = """
import random
import numpy as np
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.idle = nn.Linear(3, 1), nn.Linear(3, 1)
        self.idle.weight = self.layer.weight
        self.idle.bias.requires_grad = False

    def forward(self, x):
        return self.layer(x)

class Idle(Net):
    def __init__(self):
        super().__init__()
        self.idle = nn.Linear(2, 2)

def loss(outputs, batch):
    return outputs.square().mean()
def infinite(outputs, batch):
    return outputs.mean() / 0
def steep(outputs, batch):
    return (outputs - outputs.detach()).abs().sqrt().sum()
def drawn(outputs, batch):
    return outputs.mean() * random.random()
def rows(outputs, batch):
    return outputs

def batches():
    yield {"x": np.ones((4, 3), np.float32)}
def zeros():
    yield {"x": np.zeros((4, 3), np.float32)}
def wide():
    yield {"x": np.ones((4, 5), np.float32)}
def double():
    yield {"x": np.ones((4, 3))}
def holes():
    yield {"x": np.full((4, 3), np.nan, np.float32)}
def random_batches():
    yield {"x": np.float32([[random.SystemRandom().random()] * 3] * 4)}
"""


def spec_of(folder: Path, model: str = "Net", loss: str = "loss", batches: str = "batches") -> Spec:
    (folder / "m.py").write_text(MODEL)
    train = {
        "loss": f"m.py:{loss}",
        "batches": f"m.py:{batches}",
        "batch_size": 4,
        "optimizer": {"adamw": {"lr": 1e-3}},
    }
    data = {
        "name": "t",
        "model": {"python": f"m.py:{model}"},
        "dims": {"n": {"min": 1, "typical": 4, "max": 8}},
        "inputs": {"x": {"shape": ["n", 3]}},
        "train": train,
    }
    return Spec.model_validate(data)


def tried(folder: Path, **names: str) -> str:
    spec = spec_of(folder, **names)
    form = load_original(spec, folder)
    assert isinstance(form, Eager)
    return try_plain_step(form, spec, folder)


def test_a_sound_step_gives_a_hash_of_its_data(tmp_path: Path) -> None:
    found = tried(tmp_path)
    assert tried(tmp_path) == found
    assert tried(tmp_path, batches="zeros") != found


def test_the_plain_recipe_knows_the_users_ties(tmp_path: Path) -> None:
    spec = spec_of(tmp_path)
    form = load_original(spec, tmp_path)
    assert isinstance(form, Eager)
    recipe = plain_form(form, spec, tmp_path).recipe
    assert recipe.ties == (("layer.weight", "idle.weight"),)
    assert recipe.model_dump(exclude={"ties"}) == type(recipe)().model_dump(exclude={"ties"})


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ({"loss": "infinite"}, ["loss 'm.py:infinite' is", "a finite number"]),
        ({"loss": "steep"}, ["the gradient of 'layer.weight' is not finite"]),
        ({"loss": "drawn"}, ["another loss when it is taken again"]),
        ({"loss": "rows"}, ["no scalar to go back from", "shape [4, 1]"]),
        ({"model": "Idle"}, ["2 parameters get no gradient: idle.weight, idle.bias"]),
        ({"batches": "wide"}, ["entry 'x' of train.batches is not what inputs.x says", "[4, 5]"]),
        ({"batches": "double"}, ["entry 'x'", "float64"]),
        ({"batches": "holes"}, ["is nan", "entry 'x' of the first batch holds NaN"]),
        ({"batches": "random_batches"}, ["other batches when it is started again", "another 'x'"]),
    ],
)
def test_faults_are_named(names: dict[str, str], words: list[str], tmp_path: Path) -> None:
    with pytest.raises(MegacompileError) as caught:
        tried(tmp_path, **names)
    for word in words:
        assert word in str(caught.value)
