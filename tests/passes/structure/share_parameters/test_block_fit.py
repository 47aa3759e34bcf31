"""Parameters of one block that answers like several."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from tests.passes.context import example
from tests.passes.structure.share_parameters.stacks import Stack, eager, share


def test_least_squares_of_blocks_is_nearer_than_the_first_or_the_mean(tmp_path: Path) -> None:
    model = eager(Stack(2))
    inputs: dict[int, Any] = {}
    original: Any = model.module
    handles = [
        b.register_forward_hook(lambda m, a, o, i=i: inputs.update({i: (a[0], o)}))
        for i, b in enumerate(original.blocks)
    ]
    model.run(example(model.signature, {"batch": 8}, 99))  # not among the samples
    for handle in handles:
        handle.remove()

    def error(init: str) -> float:
        module: Any = share(model, tmp_path, every=2, init=init).model.module
        total = 0.0
        with torch.no_grad():
            for i, block in enumerate(module.blocks):
                given, wanted = inputs[i]
                total += float((block(given) - wanted).square().sum() / wanted.square().sum())
        return total

    errors = {init: error(init) for init in ("first", "mean", "least-squares")}
    assert errors["least-squares"] < 0.8 * min(errors["first"], errors["mean"]), errors
