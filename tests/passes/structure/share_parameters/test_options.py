"""Options of `share-parameters`, and the groups of blocks they mean."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from megacompile_passes.structure.share_parameters.eager import ShareParametersEager
from pydantic import ValidationError
from torch import nn

from megacompile.errors import PassError
from tests.passes.structure.share_parameters.stacks import WIDTH, Block, Stack, eager, share


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "group"}, "needs one of"),
        ({"mode": "group", "every": 1}, "greater than"),
        ({"mode": "group", "every": 2, "groups": [["a"]]}, "not both"),
        ({"mode": "identical", "every": 2}, "takes no `every`"),
        ({"mode": "identical", "init": "mean"}, "takes no `init`"),
    ],
)
def test_options_that_do_not_fit(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        ShareParametersEager(**options)


def test_a_selector_without_a_match(tmp_path: Path) -> None:
    with pytest.raises(PassError, match="matches nothing") as caught:
        share(eager(Stack()), tmp_path, groups=[["block.*"]])
    assert "blocks" in str(caught.value.remedy)


def test_one_block_and_overlapping_groups(tmp_path: Path) -> None:
    model = eager(Stack())
    with pytest.raises(PassError, match="one block shares nothing"):
        share(model, tmp_path, groups=[["blocks.0"]])
    with pytest.raises(PassError, match="in two groups"):
        share(model, tmp_path, groups=[["blocks.0", "blocks.1"], ["blocks.1", "blocks.2"]])


def test_nothing_repeats(tmp_path: Path) -> None:
    with pytest.raises(PassError, match="no repeated blocks"):
        share(eager(nn.Sequential(Block(), nn.Linear(WIDTH, WIDTH))), tmp_path, every=2)


def test_blocks_that_are_one_already(tmp_path: Path) -> None:
    block = Block()
    net = nn.Sequential(block, block)
    with pytest.raises(PassError, match="no repeated blocks"):
        share(eager(net), tmp_path, every=2)


def test_a_rest_is_named(tmp_path: Path) -> None:
    result = share(eager(Stack(3)), tmp_path, every=2)
    assert result.sites.skipped == [
        ("blocks.2", "the last of its kind: nothing is left to share with")
    ]
