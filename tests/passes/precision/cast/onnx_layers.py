"""Small ONNX models to cast, and the pass on them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from megacompile_passes.precision.cast.onnx import CastOnnx
from onnx import helper

from megacompile.models.forms import Onnx
from tests.passes.context import make_context
from tests.passes.onnx_models import digest, onnx_model

node = helper.make_node


RNG = np.random.default_rng(0)


F32 = np.float32


DTYPES = ["bfloat16", "float16"]


def random(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(F32)


def cast(model: Onnx, tmp_path: Path, dtype: str, data: Any = None, **options: Any) -> Any:
    before = digest(model.path.parent)
    ctx = make_context(tmp_path, model.signature, data)
    result = CastOnnx(dtype=dtype, **options).run(model, ctx)
    assert digest(model.path.parent) == before
    assert {p.name for p in ctx.work.iterdir()} <= {"model.onnx", "model.onnx.data"}
    onnx.checker.check_model(str(result.model.path), full_check=True)
    return result


def two_layers(tmp_path: Path) -> Onnx:
    nodes = [
        node("Gemm", ["x", "W", "b"], ["a"], "first"),
        node("Relu", ["a"], ["c"], "relu"),
        node("MatMul", ["c", "V"], ["d"], "second"),
        node("Softmax", ["d"], ["y"], "softmax"),
    ]
    return onnx_model(
        tmp_path,
        nodes,
        {"x": (["batch", 64], "float32")},
        {"y": ["batch", 64]},
        {"W": random(64, 96) / 8, "b": random(96), "V": random(96, 64) / 8},
    )
