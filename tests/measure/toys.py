"""Small models of a user's, in a file beside their spec."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from megacompile.spec.models import Spec

MODEL = """
import numpy as np
import torch
from torch import nn

class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        return {"y": self.layer(x), "norm": x.norm(dim=1)}

class Random(Plain):
    def forward(self, x):
        return {"y": self.layer(x) + torch.rand(3)}

class Counting(Plain):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return {"y": self.layer(x)}

class Remembering(Plain):
    last = 0
    def forward(self, x):
        self.last = self.last + 1
        return {"y": self.layer(x)}

class Writing(Plain):
    def forward(self, x):
        x.mul_(2)
        return {"y": self.layer(x)}

class Narrow(Plain):
    def forward(self, x):
        return {"y": self.layer(x.view(-1, 2, 4)[:, 0])}

class Optional(Plain):
    def forward(self, x, scale=None):
        y = self.layer(x)
        return {"y": y if scale is None else y * scale[:, None]}

def calibration():
    rows = np.arange(12, dtype=np.float32).reshape(3, 4)
    for row in rows:
        yield {"x": row[None]}
"""


def make_spec(folder: Path, model: str = "Plain", **sections: Any) -> Spec:
    """A spec of a model above, which is written into the folder."""
    (folder / "m.py").write_text(MODEL)
    data = {
        "name": "toy",
        "model": {"python": f"m.py:{model}"},
        "dims": {"n": {"min": 1, "typical": 2, "max": 16}},
        "inputs": {"x": {"shape": ["n", 4]}},
    }
    return Spec.model_validate({**data, **sections})
