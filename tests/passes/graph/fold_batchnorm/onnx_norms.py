"""Small ONNX models with normalization, and the pass on them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from megacompile_passes.graph.fold_batchnorm.onnx import FoldBatchNormOnnx
from onnx import helper

from megacompile.models.forms import Onnx
from tests.passes.context import make_context
from tests.passes.onnx_models import digest

node = helper.make_node


RNG = np.random.default_rng(0)


F32 = np.float32


def random(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(F32)


def statistics(channels: int) -> dict[str, np.ndarray]:
    return {
        "gamma": random(channels),
        "beta": random(channels),
        "mean": random(channels),
        "var": RNG.uniform(0.5, 2, channels).astype(F32),
    }


NORM = ["gamma", "beta", "mean", "var"]


def fold(model: Onnx, tmp_path: Path) -> Any:
    before = digest(model.path.parent)
    result = FoldBatchNormOnnx().run(model, make_context(tmp_path, model.signature))
    assert digest(model.path.parent) == before
    return result
