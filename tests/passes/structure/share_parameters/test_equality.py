"""Tensors that are equal bit for bit become one, and no others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from megacompile_passes.structure.share_parameters.eager import ShareParametersEager
from torch import nn

from megacompile.plan.passes import Effect
from tests.passes import models
from tests.passes.models import Untouched, dim, make_eager, tensor
from tests.passes.structure.share_parameters.stacks import WIDTH, Stack, eager, share


def test_equal_tensors_become_one_and_others_never(tmp_path: Path) -> None:
    model = eager(Stack(3))
    module: Any = model.module
    module.blocks[2].load_state_dict(module.blocks[0].state_dict())
    with torch.no_grad():
        weight = module.blocks[2].up.weight
        weight[0, 0] = torch.nextafter(weight[0, 0], torch.tensor(9.0))
    untouched = Untouched(module)
    result = share(model, tmp_path, mode="identical")
    shared: Any = result.model.module
    assert shared.blocks[2].down.weight is shared.blocks[0].down.weight
    assert shared.blocks[2].up.weight is not shared.blocks[0].up.weight
    assert shared.blocks[1].shift is shared.blocks[0].shift
    models.assert_same(result.model, model, atol=0, rtol=0)
    assert ShareParametersEager(mode="identical").promised() is Effect.EXACT
    untouched.check()


def test_negative_zero_is_not_zero(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH))
    model = eager(net)
    with torch.no_grad():
        net[0].bias.zero_()
        net[1].bias.copy_(torch.full((WIDTH,), -0.0))
    assert share(model, tmp_path, mode="identical").sites.changed == 0


def test_statistics_of_a_batch_norm_stay_apart(tmp_path: Path) -> None:
    net = nn.Sequential(nn.BatchNorm1d(WIDTH), nn.BatchNorm1d(WIDTH))
    model = make_eager(net, {"x": tensor("batch", WIDTH)}, {"batch": dim(1, 3, 8)})
    result = share(model, tmp_path, mode="identical")
    module: Any = result.model.module
    assert module[0].running_mean is not module[1].running_mean
    assert module[0].weight is module[1].weight
    assert ("0.running_mean", "a statistic that training updates") in result.sites.skipped
