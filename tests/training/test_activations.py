"""What a piece of a batch needs beside the state: less with checkpoints."""

from __future__ import annotations

import torch

from megacompile.training.activations import activation_memory
from megacompile.training.recipe import Checkpoint, Recipe
from tests.training.toy import batches_of, make_form


def test_a_checkpoint_keeps_less() -> None:
    form = make_form(batch_size=64, accumulate=1)
    batch = next(batches_of(form))
    recipe = Recipe(checkpoints=tuple(Checkpoint(module=f"blocks.{n}") for n in range(6)))
    plain = activation_memory(form.step(), batch)
    fewer = activation_memory(form.step(recipe), batch)
    assert fewer.peak < 0.6 * plain.peak
    assert plain.left <= 64, "nothing of a piece outlives it but its loss"


def test_one_piece_is_measured_and_the_step_stays_as_it_was() -> None:
    whole, pieces = make_form(accumulate=1), make_form(accumulate=4)
    batch = next(batches_of(whole))
    step = pieces.step()
    before = {name: value.clone() for name, value in step.module.state_dict().items()}
    assert activation_memory(step, batch).peak < activation_memory(whole.step(), batch).peak
    assert all(one.grad is None for one in step.module.parameters())
    assert not step.optimizer.state
    after = step.module.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())
