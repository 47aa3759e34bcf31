"""Small ONNX models to simplify."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from onnx import helper

from megacompile.models.forms import Onnx
from tests.passes.onnx_models import onnx_model

node = helper.make_node


RNG = np.random.default_rng(0)


F32 = np.float32


def weight(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(F32)


def foldable(tmp_path: Path) -> Onnx:
    nodes = [
        node("Identity", ["x"], ["a"]),
        node("Transpose", ["W"], ["WT"], perm=[1, 0]),
        node("MatMul", ["a", "WT"], ["b"]),
        node("Shape", ["W"], ["s"]),
        node("Gather", ["s", "zero"], ["n"], axis=0),
        node("Cast", ["n"], ["f"], to=1),
        node("Mul", ["b", "f"], ["y"]),
    ]
    return onnx_model(
        tmp_path,
        nodes,
        {"x": (["batch", 8], "float32")},
        {"y": ["batch", 16]},
        {"W": weight(16, 8), "zero": np.array(0)},
    )
