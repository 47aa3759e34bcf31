"""Steps over several processes, as far as one process shows them; crews are tried elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from megacompile.errors import DataError, ModelError
from megacompile.training import distribution
from megacompile.training.recipe import Distribute

TWO = Distribute(strategy="fsdp", processes=2)


@pytest.fixture
def second_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in the second of two processes."""
    monkeypatch.setattr(distribution, "running", lambda: True)
    monkeypatch.setattr(distribution.dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(distribution.dist, "get_rank", lambda: 1)


def test_one_process_needs_nothing() -> None:
    module, batch = nn.Linear(2, 2), {"x": torch.arange(4)}
    one = Distribute(strategy="ddp", processes=1)
    for choice in (None, one):
        assert distribution.distribute(module, choice, "cpu") is module
    assert distribution.own_part(batch, one)["x"] is batch["x"]
    assert distribution.own_folder(Path("a")) == Path("a")
    assert (distribution.smallest(3), distribution.largest(3)) == (3, 3)
    assert not distribution.is_sharded(TWO)
    tensor = torch.ones(2)
    assert distribution.whole(tensor) is tensor


def test_processes_that_are_not_there_are_asked_for() -> None:
    with pytest.raises(ModelError, match=r"2 processes(.|\n)*1 running(.|\n)*--nproc-per-node 2"):
        distribution.distribute(nn.Linear(2, 2), TWO, "cpu")


@pytest.mark.usefixtures("second_of_two")
def test_each_process_takes_its_own_rows() -> None:
    assert distribution.own_part({"x": torch.arange(6)}, TWO)["x"].tolist() == [3, 4, 5]
    assert distribution.own_folder(Path("a")) == Path("a/rank-1")
    assert distribution.is_sharded(TWO)
    with pytest.raises(DataError, match=r"divide by the processes(.|\n)*a multiple of 2"):
        distribution.own_part({"x": torch.arange(5)}, TWO)


def test_parts_are_filled_in_place_or_refused() -> None:
    module, other = nn.Linear(2, 3), nn.Linear(2, 3)
    weight = module.weight
    distribution.fill_shards(module, distribution.local(dict(other.state_dict())))
    assert module.weight is weight
    assert torch.equal(weight, other.weight)
    for state in ({"weight": other.weight}, dict(nn.Linear(3, 3).state_dict())):
        with pytest.raises(ModelError, match="stored state doesn't fit"):
            distribution.fill_shards(module, state)
