"""A store of each test's own, and models to write a spec for."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEGACOMPILE_CACHE", str(tmp_path / "cache"))


MODELS = """
import torch
from torch import nn

class Ids(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(50, 8)
        self.head = nn.Linear(8, 3)
    def forward(self, input_ids, attention_mask, scale: float = 2.0, bias=None):
        mask = attention_mask[..., None].float()
        return self.head((self.words(input_ids) * mask).sum(1)) * scale

class Odd(nn.Module):
    def forward(self, state, n: int):
        return state["x"] * n

class Grouped(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, groups=2)
    def forward(self, image):
        return self.conv(image)

class Images(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.head = nn.Linear(4 * 32 * 32, 2)
    def forward(self, image):
        return self.head(self.conv(image).flatten(1))

def linear():
    return nn.Sequential(nn.Linear(5, 4), nn.ReLU())

def gru():
    return nn.GRU(6, 4, batch_first=True)

def number():
    return 3

def breaks():
    raise RuntimeError("no weights here")
"""


@pytest.fixture
def models(tmp_path: Path) -> Path:
    path = tmp_path / "models.py"
    path.write_text(MODELS)
    return path
