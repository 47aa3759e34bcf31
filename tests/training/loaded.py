"""A Dataset in a file of the user's, and batches out of such files."""

from __future__ import annotations

from pathlib import Path

from megacompile.training.batches import Batches
from tests.training.toy import make_train

DATASET = """
import os, random, signal, time
import numpy as np
import torch
class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 10
    def __getitem__(self, index):
        {body}
        return {{"x": torch.tensor([float(index)]), "y": index}}
def batches():
    return Numbers()
"""


def made(tmp_path: Path, text: str, **changes: object) -> Batches:
    """Batches of `data.py:batches`, a file with that text."""
    (tmp_path / "data.py").write_text(text)
    train = make_train(batches="data.py:batches", accumulate=1, **changes)
    return Batches(train, tmp_path, seed=0)
