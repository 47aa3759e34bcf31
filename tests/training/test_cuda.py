"""The same step on a GPU, where there is one."""

from __future__ import annotations

import pytest
import torch

from megacompile.measure.training.comparison import compare_traces, trace
from megacompile.training.activations import activation_memory
from megacompile.training.figures import memory_figures, operators
from megacompile.training.memory import live_memory
from megacompile.training.recipe import Checkpoint, Recipe, Scaler
from tests.training.toy import batches_of, make_form

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU here")


def test_live_memory_is_the_allocators() -> None:
    kept: list[torch.Tensor] = []

    def work() -> None:
        kept.append(torch.ones(2**20, device="cuda"))
        temporary = torch.ones(2**21, device="cuda")
        del temporary

    found = live_memory(work, "cuda")
    assert found.peak == 3 * 2**22
    assert found.left == 2**22
    assert max(size for _, size in found.timeline) == found.peak


def test_the_step_is_that_of_the_cpu() -> None:
    form = make_form(dropout=False)
    cpu = trace(form.step(), batches_of(form), 2)
    gpu = trace(form.step(device="cuda"), batches_of(form), 2)
    assert compare_traces(cpu, gpu).cosine_min > 0.9999


def test_float16_and_checkpoints() -> None:
    form = make_form(batch_size=64, accumulate=1)
    wrapped = tuple(Checkpoint(module=f"blocks.{n}") for n in range(6))
    recipe = Recipe(autocast="float16", scaler=Scaler(), checkpoints=wrapped)
    step, batch = form.step(recipe, device="cuda"), next(batches_of(form))
    assert not step.step(batch).skipped
    plain = activation_memory(form.step(device="cuda"), batch)
    assert activation_memory(step, batch).peak < plain.peak
    assert memory_figures(step, batch)["peak_memory_mb"] > 0
    assert operators(step, batch)
