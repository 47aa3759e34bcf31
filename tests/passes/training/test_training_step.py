"""From a module to one that is trained: ties are kept, nothing else is decided."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from megacompile_passes.training.training_step import TrainingStep
from torch import nn

from megacompile.errors import ModelError, PassError
from megacompile.models.forms import Eager
from megacompile.plan.passes import Traits
from megacompile.training.form import Training
from megacompile.training.recipe import Recipe
from tests.passes.models import dim as make_dim
from tests.passes.models import make_eager, tensor
from tests.training.toy import digits, make_context, make_form


def eager(module: nn.Module) -> Eager:
    return make_eager(module, {"image": tensor("batch", 8, 8)}, {"batch": make_dim(1, 4, 8)})


def run(tmp_path: Path, module: nn.Module) -> Any:
    return TrainingStep().run(eager(module), make_context(tmp_path, make_form()))


def test_ties_of_the_module_go_into_the_recipe(tmp_path: Path) -> None:
    module = digits().build()
    module.blocks[1].wide.weight = module.blocks[0].wide.weight
    result = run(tmp_path, module)
    names = ("blocks.0.wide.weight", "blocks.1.wide.weight")
    assert result.model.recipe == Recipe(ties=(names,))
    assert "2 parameters share one storage" in result.notes[0]
    inner = result.model.module
    assert inner.blocks[1].wide.weight is inner.blocks[0].wide.weight
    assert inner is not module


def test_a_frozen_model_is_refused_and_frozen_parts_are_named(tmp_path: Path) -> None:
    module = digits().build()
    module.place.requires_grad_(False)
    result = run(tmp_path, module)
    assert result.sites.skipped == [("place", "it has requires_grad=False: it is not trained")]
    with pytest.raises(ModelError, match="no parameter to train"):
        run(tmp_path, module.requires_grad_(False))


def test_it_is_not_for_inference(tmp_path: Path) -> None:
    assert TrainingStep().refusal(Traits("openvino"))
    context = make_context(tmp_path, make_form())
    context.training = None
    with pytest.raises(PassError, match="workload: training"):
        TrainingStep().run(eager(digits().build()), context)


def test_a_stored_form_comes_back_without_pickle(tmp_path: Path) -> None:
    form = make_form()
    with torch.no_grad():
        form.module.head.weight.mul_(2)
    form.module.blocks[1].wide.weight = form.module.blocks[0].wide.weight
    names = ("blocks.0.wide.weight", "blocks.1.wide.weight")
    tied = form.with_recipe(Recipe(ties=(names,), autocast="bfloat16"))
    folder = tmp_path / "form"
    folder.mkdir()
    tied.save(folder)
    assert sorted(p.name for p in folder.iterdir()) == ["training.json", "weights.safetensors"]
    loaded = Training.load(folder, form.signature)
    assert loaded.recipe == tied.recipe
    assert loaded.origin == form.origin
    assert loaded.module.blocks[1].wide.weight is loaded.module.blocks[0].wide.weight
    state = form.module.state_dict()
    assert all(torch.equal(state[n], v) for n, v in loaded.module.state_dict().items())
    assert loaded.size_bytes() == form.size_bytes()


def test_other_code_than_the_weights_are_of_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "form"
    folder.mkdir()
    make_form(nn.Sequential(nn.Flatten(), nn.Linear(64, 10))).save(folder)
    with pytest.raises(ModelError, match="another model"):
        Training.load(folder, make_form().signature)
