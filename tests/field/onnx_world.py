"""ONNX files of field cases: small graphs on disk, specs for them, and calibration data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.field import world
from tests.field.world import dim, normal

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
Node = onnx.NodeProto
ROWS = {"n": dim(1, 8, 32)}


def save(
    folder: Path,
    nodes: list[Node],
    inputs: dict[str, tuple[int, list[Any]]],
    outputs: dict[str, list[Any]],
    weights: dict[str, np.ndarray],
    listed: tuple[str, ...] = (),
) -> None:
    """Write m.onnx; weights in `listed` are graph inputs too, with their value as default."""
    values = [helper.make_tensor_value_info(n, t, s) for n, (t, s) in inputs.items()]
    values += [helper.make_tensor_value_info(n, FLOAT, list(weights[n].shape)) for n in listed]
    graph = helper.make_graph(
        nodes,
        "case",
        values,
        [helper.make_tensor_value_info(n, FLOAT, s) for n, s in outputs.items()],
        [numpy_helper.from_array(a, n) for n, a in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    onnx.save(model, str(folder / "m.onnx"))


def spec(**parts: Any) -> dict[str, Any]:
    return world.spec(model={"onnx": "m.onnx"}, **parts)


def calibration(rows: str) -> dict[str, str]:
    """A data.py whose hook yields `rows`, an expression of numpy arrays by input name."""
    return {
        "data.py": f"""
import numpy as np
def samples():
    random = np.random.default_rng(0)
    for index in range(64):
        yield {rows}
"""
    }


DATA = {"calibration": {"python": "data.py:samples", "samples": 64}}
STATIC = {"quantize": {"method": "static"}}
DYNAMIC = {"quantize": {"method": "dynamic"}}


def chain(folder: Path) -> None:
    """Write two products with a ReLU between them."""
    nodes = [
        helper.make_node("MatMul", ["X", "W1"], ["h"], name="first"),
        helper.make_node("Relu", ["h"], ["r"], name="act"),
        helper.make_node("MatMul", ["r", "W2"], ["Y"], name="second"),
    ]
    save(
        folder,
        nodes,
        {"X": (FLOAT, ["n", 64])},
        {"Y": ["n", 64]},
        {"W1": normal(64, 64), "W2": normal(64, 64, seed=1)},
    )
