"""Live bytes are counted, not estimated: known allocations give known figures."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from megacompile.training.memory import SavedBytes, bytes_of, live_memory, thin_peaks

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
