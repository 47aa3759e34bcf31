"""The layer whose answers differ least from those of several."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from tests.passes.structure.share_parameters.stacks import WIDTH, eager, samples, share


def test_least_squares_of_linear_layers_is_the_solution(tmp_path: Path) -> None:
    """Against numpy's solver on the stacked inputs and answers of both layers."""

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(WIDTH, 8), nn.Linear(WIDTH, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.a(x) + self.b(torch.relu(x) * 3)

    model = eager(Two())
    result = share(model, tmp_path, groups=[["a", "b"]], init="least-squares")
    given: Any = model.module
    x = torch.from_numpy(np.concatenate([f["x"] for f in samples(model)]))
    rows = torch.cat([x, torch.relu(x) * 3]).double()
    rows = torch.cat([rows, torch.ones_like(rows[:, :1])], 1)
    with torch.no_grad():
        answers = torch.cat([given.a(x), given.b(torch.relu(x) * 3)]).double()
    expected = np.linalg.lstsq(rows.numpy(), answers.numpy(), rcond=None)[0]
    shared: Any = result.model.module
    np.testing.assert_allclose(shared.a.weight.detach(), expected[:-1].T, atol=2e-3)
    np.testing.assert_allclose(shared.a.bias.detach(), expected[-1], atol=2e-3)
