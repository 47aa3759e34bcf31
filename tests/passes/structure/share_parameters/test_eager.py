"""`share-parameters`: what is tied is one tensor for gradients, optimizers and files."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import torch
from megacompile_passes.structure.share_parameters.eager import ShareParametersEager
from torch import nn

from megacompile.errors import DataError, PassError
from megacompile.models.forms import Eager
from megacompile.models.torchmodules import copy_module
from tests.passes import models
from tests.passes.context import make_context
from tests.passes.models import Untouched
from tests.passes.structure.share_parameters.stacks import (
    AROUND,
    BLOCK,
    WIDTH,
    Block,
    Stack,
    eager,
    share,
)


def test_groups_of_blocks_have_one_storage(tmp_path: Path) -> None:
    model = eager(Stack())
    untouched = Untouched(model.module)
    result = share(model, tmp_path, every=2)
    blocks: Any = result.model.module.blocks
    for first, second in ((0, 1), (2, 3)):
        for name, parameter in blocks[first].named_parameters():
            assert blocks[second].get_parameter(name) is parameter
    assert blocks[0].up.weight is not blocks[2].up.weight
    assert blocks[0].shift is not blocks[1].shift, "buffers stay apart"
    assert (result.sites.matched, result.sites.changed) == (4, 4)
    assert result.model.parameters() - 4 * WIDTH == 2 * BLOCK + AROUND
    assert "blocks.0 = blocks.1; blocks.2 = blocks.3" in result.notes
    untouched.check()


def test_answers_are_those_of_the_first_block_everywhere(tmp_path: Path) -> None:
    model = eager(Stack(2))
    expected = copy_module(model.module)
    assert isinstance(expected, Stack)
    expected.blocks[1].load_state_dict(expected.blocks[0].state_dict())
    models.assert_same(share(model, tmp_path, every=2).model, model.with_module(expected))


def test_gradients_add_up_and_the_optimizer_sees_one(tmp_path: Path) -> None:
    """Equal to autograd on two separate blocks with the same values, summed by hand."""
    model = eager(Stack(2))
    shared: Any = share(model, tmp_path, every=2).model.module
    apart: Any = copy_module(model.module)
    apart.blocks[1].load_state_dict(apart.blocks[0].state_dict())
    x = torch.randn(4, WIDTH)
    for one in (shared, apart):
        one(x).square().sum().backward()
    for name, parameter in shared.blocks[0].named_parameters():
        both = apart.blocks[0].get_parameter(name).grad + apart.blocks[1].get_parameter(name).grad
        torch.testing.assert_close(parameter.grad, both)
    optimizer = torch.optim.SGD(shared.parameters(), lr=0.1)
    assert sum(p.numel() for p in optimizer.param_groups[0]["params"]) == BLOCK + AROUND
    before = shared.blocks[0].up.weight.detach().clone()
    gradient = shared.blocks[0].up.weight.grad.clone()
    optimizer.step()
    torch.testing.assert_close(shared.blocks[1].up.weight, before - 0.1 * gradient)


def test_the_tie_survives_copies_and_files(tmp_path: Path) -> None:
    result = share(eager(Stack()), tmp_path, every=4)
    folder = tmp_path / "saved"
    folder.mkdir()
    result.model.save(folder)
    file = io.BytesIO()
    torch.save(result.model.module.state_dict(), file)
    own_parameters = BLOCK + AROUND
    assert file.tell() < 4 * own_parameters + 4 * 4 * WIDTH + 8000
    target: Any = copy_module(result.model.module)
    file.seek(0)
    target.load_state_dict(torch.load(file))
    for one in (Eager.load(folder, result.model.signature).module, target):
        assert one.blocks[3].up.weight is one.blocks[0].up.weight
        assert sum(p.numel() for p in one.parameters()) == own_parameters


def test_blocks_that_compute_other_things_are_not_shared(tmp_path: Path) -> None:
    model = eager(Stack(4, scales=(1.0, 0.5, 1.0, 0.5)))
    result = share(model, tmp_path, every=2)
    assert result.notes[0] in (
        "blocks.0 = blocks.2; blocks.1 = blocks.3",
        "blocks.1 = blocks.3; blocks.0 = blocks.2",
    )
    with pytest.raises(PassError, match="can't share parameters") as caught:
        share(model, tmp_path, groups=[["blocks.0", "blocks.1"]])
    assert "0.5" in str(caught.value.got)


class Renamed(nn.Module):
    """The same computation as `Block`, with other names and in another order."""

    def __init__(self) -> None:
        super().__init__()
        self.second, self.first = nn.Linear(32, WIDTH), nn.Linear(WIDTH, 32)
        self.before = nn.LayerNorm(WIDTH)
        self.register_buffer("zero", torch.zeros(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.second(torch.relu(self.first(self.before(x)))) * 1.0
        return x + (y + self.zero)


def test_parameters_correspond_by_their_part_in_the_computation(tmp_path: Path) -> None:
    model = eager(nn.Sequential(Block(), Renamed()))
    module: Any = share(model, tmp_path, groups=[["0", "1"]]).model.module
    assert module[1].first.weight is module[0].up.weight
    assert module[1].second.bias is module[0].down.bias
    assert module[1].before.weight is module[0].norm.weight


@pytest.mark.parametrize("init", ["nearest", "least-squares"])
def test_empty_calibration(tmp_path: Path, init: str) -> None:
    model = eager(Stack(2))
    context = make_context(tmp_path, model.signature, [])
    with pytest.raises(DataError, match="empty"):
        ShareParametersEager(mode="group", every=2, init=init).run(model, context)
