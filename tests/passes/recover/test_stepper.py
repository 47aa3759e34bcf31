"""Optimizer steps of `recover`."""

from __future__ import annotations

import numpy as np
from megacompile_passes.recover.eager import RecoverEager

from megacompile.models.forms import Eager
from megacompile.plan.passes import PassContext
from tests.passes.recover.worlds import probe, recover, spoiled


def test_accumulation_is_the_mean_of_its_pieces(world: tuple[Eager, PassContext]) -> None:
    original, context = world
    sgd = {"sgd": {"lr": 0.1}}
    outputs = []
    for size, pieces in ((240, 1), (60, 4)):
        options = recover(
            distill={},
            steps=1,
            batch_size=size,
            accumulate=pieces,
            optimizer=sgd,
            held_out=0.0625,
            clip_norm=None,
        )
        outputs.append(RecoverEager(**options).run(spoiled(original), context).model)
    # 240 samples are trained on: one batch of all, or four pieces of it. The scale of `mse` is
    # the batch's own, which differs a little between pieces.
    feeds = probe(original)
    a, b = (m.run(feeds)["logits"] for m in outputs)
    moved = np.abs(a - spoiled(original).run(feeds)["logits"]).max()
    assert np.abs(a - b).max() < 0.1 * moved
