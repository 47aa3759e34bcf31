"""The block of each group that keeps the model's answers nearest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.passes.structure.share_parameters.stacks import Stack, eager, samples, share


def test_nearest_is_the_block_that_keeps_the_answers(tmp_path: Path) -> None:
    """Every choice of blocks is tried here; no other choice for one group alone is better."""
    model = eager(Stack(4))
    original: Any = model.module
    with torch.no_grad():  # the second block of the first pair is what that pair does
        for value in original.blocks[0].parameters():
            value.mul_(0.01)
    feeds = list(samples(model))
    wanted = [model.run(one) for one in feeds]

    def error(chosen: tuple[int, int]) -> float:
        tried = model.copy()
        blocks: Any = tried.module.blocks
        for at, source in enumerate((chosen[0], chosen[0], chosen[1], chosen[1])):
            blocks[at].load_state_dict(original.blocks[source].state_dict())
        errors = []
        for one, answer in zip(feeds, wanted, strict=True):
            got = tried.run(one)
            difference = sum(((got[n] - answer[n]) ** 2).sum() for n in answer)
            errors.append(difference / sum((answer[n] ** 2).sum() for n in answer))
        return float(np.mean(errors))

    result = share(model, tmp_path, every=2, init="nearest")
    module: Any = result.model.module
    weights = [block.up.weight for block in original.blocks]
    first, second = (
        next(i for i, w in enumerate(weights) if torch.equal(w, block.up.weight))
        for block in (module.blocks[0], module.blocks[2])
    )
    assert first == 1
    assert error((first, second)) <= min(error((0, second)), error((first, 5 - second)))
    assert error((first, second)) < error((0, 2))
    assert f"values of blocks.1, blocks.{second}" in result.notes[1]
