"""The values that blocks share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from tests.passes.structure.share_parameters.stacks import Stack, eager, share


def test_the_mean(tmp_path: Path) -> None:
    model = eager(Stack(3))
    module: Any = share(model, tmp_path, groups=[["blocks.*"]], init="mean").model.module
    given: Any = model.module
    mean = torch.stack([b.up.weight for b in given.blocks]).mean(0)
    torch.testing.assert_close(module.blocks[2].up.weight, mean)
