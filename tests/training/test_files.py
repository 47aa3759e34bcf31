"""A training form on disk: weights once, the rest as JSON, the source carried along."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import nn

from megacompile.errors import ModelError, PassError
from megacompile.models import bind
from megacompile.spec import Train
from megacompile.system import hooks
from megacompile.training.context import Origin
from megacompile.training.files import (
    RECORD,
    WEIGHTS,
    carry_source,
    check_stored,
    load_training,
    read_record,
    save_training,
    unique_state,
)
from megacompile.training.recipe import Checkpoint, Recipe
from megacompile.training.ties import apply_ties, find_ties

MODEL = """
import torch
from torch import nn
from sizes import WIDTH
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.second.weight = self.first.weight
    def forward(self, x):
        return self.second(self.first(x))
build = Net
def loss(outputs, batch): return outputs.mean()
"""


@pytest.fixture
def base(tmp_path: Path) -> Path:
    folder = tmp_path / "user"
    folder.mkdir()
    (folder / "net.py").write_text(MODEL)
    (folder / "sizes.py").write_text("WIDTH = 3\n")
    return folder


def saved(base: Path, folder: Path) -> nn.Module:
    """A model with weights and a tie of its own, stored in a folder."""
    module: nn.Module = hooks.load("net.py:build", base)()
    apply_ties(module, [("first.bias", "second.bias")])
    with torch.no_grad():
        module.first.weight.fill_(7)
    data = {"loss": "net.py:loss", "batches": "net.py:none", "batch_size": 4}
    train = Train.model_validate({**data, "optimizer": {"adamw": {"lr": 1e-3}}})
    recipe = Recipe(ties=find_ties(module), checkpoints=(Checkpoint(module="first"),))
    folder.mkdir()
    binding = bind(module.forward, {"x": None}, "test")
    save_training(folder, module, binding, recipe, Origin("net.py:build", base, train, 5))
    return module


def test_what_is_stored_comes_back(base: Path, tmp_path: Path) -> None:
    module = saved(base, tmp_path / "form")
    found, binding, recipe, origin = load_training(tmp_path / "form")
    for name, tensor in module.state_dict().items():
        assert torch.equal(found.state_dict()[name], tensor)
    assert found.first.weight is found.second.weight, "the user's code ties them"
    assert found.first.bias is found.second.bias, "the recipe ties them"
    assert not found.training
    assert (dict(binding.names), recipe.checkpoints[0].module) == ({"x": "x"}, "first")
    assert (origin.model, origin.base, origin.seed) == ("net.py:build", base, 5)
    stored = safetensors.torch.load_file(str(tmp_path / "form" / WEIGHTS))
    assert sorted(stored) == ["first.bias", "first.weight"]
    aliases = {"second.weight": "first.weight", "second.bias": "first.bias"}
    assert read_record(tmp_path / "form")["aliases"] == aliases


def test_code_that_builds_another_model_is_named(base: Path, tmp_path: Path) -> None:
    saved(base, tmp_path / "form")
    record = read_record(tmp_path / "form")
    del record["aliases"]["second.weight"]
    (tmp_path / "form" / RECORD).write_text(json.dumps(record))
    with pytest.raises(ModelError, match="another model than the stored weights") as caught:
        load_training(tmp_path / "form")
    assert "second.weight" in str(caught.value)


def test_the_source_is_carried_and_the_form_loads_anywhere(base: Path, tmp_path: Path) -> None:
    saved(base, tmp_path / "form")
    assert carry_source(tmp_path / "form") == []
    record = read_record(tmp_path / "form")
    assert (record["base"], record["model"]) == (".", "source/0/net.py:build")
    assert record["train"]["loss"] == "source/0/net.py:loss"
    carried = sorted(p.name for p in (tmp_path / "form" / "source" / "0").iterdir())
    assert carried == ["net.py", "sizes.py"]
    shutil.rmtree(base)
    shutil.move(tmp_path / "form", tmp_path / "elsewhere")
    module, _, _, origin = load_training(tmp_path / "elsewhere")
    assert float(module.second.weight[0, 0]) == 7
    assert origin.base == tmp_path / "elsewhere"


def test_a_package_is_not_carried_and_that_is_said(base: Path, tmp_path: Path) -> None:
    saved(base, tmp_path / "form")
    record = read_record(tmp_path / "form")
    record["train"]["loss"] = "torch.nn.functional:mse_loss"
    (tmp_path / "form" / RECORD).write_text(json.dumps(record))
    notes = carry_source(tmp_path / "form")
    assert notes == ["'torch.nn.functional' is not carried along: it must be installed"]


def test_tensors_that_look_alike_are_stored_once_and_views_apart() -> None:
    module = nn.Module()
    whole = torch.arange(6.0)
    for name, tensor in {"a": whole, "b": whole, "part": whole[:3], "empty": whole[:0]}.items():
        module.register_buffer(name, tensor)
    tensors, aliases = unique_state(module)
    assert sorted(tensors) == ["a", "empty", "part"]
    assert aliases == {"b": "a"}
    assert tensors["part"].untyped_storage().nbytes() == 12


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda m: setattr(m, "0", nn.LazyLinear(2)), "'0'"),
        (lambda m: m[1].register_forward_hook(lambda *_: None), "'1'"),
        (lambda m: setattr(m[1], "p", 0.7), "'1'"),
        (lambda m: setattr(m[0], "forward", m[1].forward), "'0'"),
        (lambda m: m.append(nn.ReLU()), "'2'"),
    ],
)
def test_only_weights_may_differ_from_what_was_stored(change: Any, named: str) -> None:
    def made() -> nn.Sequential:
        return nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.1))

    module = made().train()
    check_stored("mine", made().eval(), module)  # other weights, another mode
    change(module)
    with pytest.raises(PassError, match=f"pass 'mine' changes the module {named}") as caught:
        check_stored("mine", made(), module)
    assert caught.value.audience == "pass author"
