"""Live bytes are counted, not estimated: known allocations give known figures."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from megacompile.training.activations import activation_memory
from megacompile.training.figures import largest_batch, memory_figures, state_bytes
from megacompile.training.memory import SavedBytes, bytes_of, live_memory, thin_peaks
from megacompile.training.recipe import Checkpoint, Recipe
from tests.training.test_step import batches_of
from tests.training.toy import make_form

MB = 2**20


def test_peak_and_rest_of_known_allocations() -> None:
    kept = []

    def work() -> None:
        kept.append(torch.ones(MB))  # 4 MiB
        temporary = torch.ones(2 * MB)  # 8 MiB
        del temporary
        kept.append(torch.ones(MB // 4))  # 1 MiB

    found = live_memory(work)
    assert found.peak == pytest.approx(12 * MB, rel=0.01)
    assert found.left == pytest.approx(5 * MB, rel=0.01)
    assert max(size for _, size in found.timeline) == found.peak


def test_bytes_count_each_storage_once() -> None:
    one = torch.zeros(1000)
    assert bytes_of([one, one[:10], {"again": one.view(10, 100)}, None, 3]) == 4000


def test_thinning_keeps_the_highest() -> None:
    curve = [(float(i), i % 997) for i in range(5000)]
    thin = thin_peaks(curve)
    assert len(thin) <= 400
    assert max(v for _, v in thin) == 996


def test_saved_bytes_of_known_layers() -> None:
    module = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 8))
    x = torch.randn(32, 64)
    saved = SavedBytes(module, ["0", "1", "2"], x)
    with saved.watch():
        module(x).sum()
    # The first layer keeps only its input, which was there; the second its output, which the
    # third needs too: it counts once.
    assert saved.by_module == {"1": 32 * 128 * 4}
    assert saved.total == 32 * 128 * 4


def test_a_checkpoint_keeps_less() -> None:
    form = make_form(batch_size=64, accumulate=1)
    batch = next(batches_of(form))
    recipe = Recipe(checkpoints=tuple(Checkpoint(module=f"blocks.{n}") for n in range(6)))
    plain = activation_memory(form.step(), batch)
    fewer = activation_memory(form.step(recipe), batch)
    assert fewer.peak < 0.6 * plain.peak
    assert plain.left <= 64, "nothing of a piece outlives it but its loss"


def test_state_of_adam_is_twice_the_parameters() -> None:
    form = make_form()
    step = form.step()
    batch = next(batches_of(form))
    step.step(batch)
    step.gather(batch)
    found = state_bytes(step)
    assert found["gradients"] == found["parameters"]
    assert found["optimizer"] == pytest.approx(2 * found["parameters"], rel=0.01)


def test_figures_of_a_step() -> None:
    form = make_form()
    step = form.step()
    batch = next(batches_of(form))
    step.step(batch)
    found = memory_figures(step, batch)
    lasting = sum(found["state_mb"][part] for part in ("parameters", "optimizer"))
    assert found["peak_memory_mb"] > lasting + found["state_mb"]["gradients"]
    assert found["saved_mb"]["blocks.0"] > 0
    assert found["saved_mb"]["blocks.0"] == pytest.approx(found["saved_mb"]["blocks.5"], rel=0.01)
    assert max(value for _, value in found["timeline"]) <= found["peak_memory_mb"] + 1e-6


def test_the_largest_batch_is_found_by_trying() -> None:
    form = make_form(batch_size=8, accumulate=1)
    stream = form.origin.train, form.origin.base, form.origin.seed
    from megacompile.training.batches import sized

    tried: list[str] = []
    step = form.step()
    batch = next(batches_of(form))
    step.step(batch)
    limit = memory_figures(step, batch)["peak_memory_mb"] * 1e6 * 2
    plain = largest_batch(step, sized(*stream), limit, 8, tried.append)
    assert tried[0].startswith("8 samples")
    recipe = Recipe(checkpoints=tuple(Checkpoint(module=f"blocks.{n}") for n in range(6)))
    fewer = form.step(recipe)
    fewer.step(batch)
    assert largest_batch(fewer, sized(*stream), limit, 8) > 1.3 * plain
    assert largest_batch(step, sized(*stream), 1000.0, 8) == 0


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_step_fits_in_its_own_memory(accumulate: int) -> None:
    """Few samples and many parameters: gradients must not be counted before they come."""
    form = make_form(batch_size=2 * accumulate, accumulate=accumulate)
    step, batch = form.step(), next(batches_of(form))
    step.step(batch)
    limit = memory_figures(step, batch)["peak_memory_mb"] * 1e6
    from megacompile.training.batches import sized

    stream = sized(form.origin.train, form.origin.base, form.origin.seed)
    assert largest_batch(step, stream, limit * 1.001, 2) >= 2
