"""Random entries of a batch replaced."""

from __future__ import annotations

import pytest
import torch
from megacompile_passes.recover.masking import masked
from megacompile_passes.recover.option_groups import Masking


def test_masking_replaces_a_share_and_keeps_special_values() -> None:
    batch = {"x": torch.arange(10_000).reshape(100, 100) % 10, "y": torch.zeros(100)}
    choice = Masking(input="x", share=0.3, value=99, keep=[0, 1])
    found = masked(batch, choice, torch.Generator().manual_seed(0))
    changed = found["x"] != batch["x"]
    assert not changed[(batch["x"] == 0) | (batch["x"] == 1)].any()
    assert float(changed[batch["x"] > 1].float().mean()) == pytest.approx(0.3, abs=0.02)
    assert set(found["x"][changed].tolist()) == {99}
