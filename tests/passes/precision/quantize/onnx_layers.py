"""Small ONNX models to quantize, and data for them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from onnx import helper

from megacompile.models.forms import Onnx
from tests.passes.onnx_models import onnx_model

node = helper.make_node


RNG = np.random.default_rng(0)


F32 = np.float32


def random(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(F32)


def two_layers(tmp_path: Path, **options: object) -> Onnx:
    nodes = [
        node("MatMul", ["x", "W"], ["a"], "first"),
        node("Relu", ["a"], ["b"], "relu"),
        node("MatMul", ["b", "V"], ["y"], "second"),
    ]
    return onnx_model(
        tmp_path,
        nodes,
        {"x": (["batch", 32], "float32")},
        {"y": ["batch", 32]},
        {"W": random(32, 64), "V": random(64, 32)},
        **options,
    )  # type: ignore[arg-type]


def rows(count: int = 8, width: int = 32) -> list[dict[str, np.ndarray]]:
    return [{"x": random(4, width)} for _ in range(count)]


METHODS = ["static", "dynamic", "weight-only"]
