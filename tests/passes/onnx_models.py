"""Small ONNX models for the tests of passes, and what the tests ask of them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from megacompile.models.forms import Onnx
from megacompile.models.signature import Signature
from megacompile.models.tensors import Array, Feeds
from megacompile.spec.inputs import Dim, TensorInput

Shapes = dict[str, tuple[Sequence[str | int], str]]


def onnx_model(
    tmp_path: Path,
    nodes: Sequence[onnx.NodeProto],
    inputs: Shapes,
    outputs: dict[str, Sequence[str | int]],
    weights: dict[str, Array],
    overridable: Sequence[str] = (),
    ir_version: int = 9,
    opset: int = 17,
) -> Onnx:
    """An ONNX form of a graph; `overridable` weights are graph inputs too."""
    dtype_of = helper.np_dtype_to_tensor_dtype
    values = [
        helper.make_tensor_value_info(n, dtype_of(np.dtype(d)), list(s))
        for n, (s, d) in inputs.items()
    ]
    values += [
        helper.make_tensor_value_info(n, dtype_of(weights[n].dtype), weights[n].shape)
        for n in overridable
    ]
    results = [
        helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, list(s))
        for n, s in outputs.items()
    ]
    initializers = [numpy_helper.from_array(np.asarray(a), n) for n, a in weights.items()]
    graph = helper.make_graph(list(nodes), "graph", values, results, initializers)
    opsets = [helper.make_opsetid("", opset)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=ir_version)
    path = tmp_path / "source" / "source.onnx"
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save_model(model, str(path))
    return Onnx(path, onnx_signature(inputs, list(outputs)))


def onnx_signature(inputs: Shapes, outputs: Sequence[str]) -> Signature:
    """Every symbolic size runs from 1 to 16."""
    names = {s for shape, _ in inputs.values() for s in shape if isinstance(s, str)}
    dims = {name: Dim(min=1, typical=4, max=16) for name in names}
    tensors = {
        name: TensorInput.model_validate({"shape": list(shape), "dtype": dtype})
        for name, (shape, dtype) in inputs.items()
    }
    return Signature(tensors, dims, tuple(outputs), None, ("float32",) * len(outputs))


def digest(folder: Path) -> dict[str, str]:
    """Hashes of all files of a folder: the source must be the same after a pass."""
    return {
        str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in sorted(folder.rglob("*"))
        if p.is_file()
    }


def nodes_of(model: Onnx) -> list[onnx.NodeProto]:
    return list(onnx.load(str(model.path)).graph.node)


def operators(model: Onnx) -> list[str]:
    """Operators of the main graph, in order."""
    return [node.op_type for node in nodes_of(model)]


def largest_error(one: Onnx, other: Onnx, feeds: Feeds) -> float:
    """Largest absolute difference over all outputs."""
    a: Any = one.run(feeds)
    b: Any = other.run(feeds)
    return max(float(np.abs(a[n].astype(np.float64) - b[n].astype(np.float64)).max()) for n in a)


def cosine(one: Onnx, other: Onnx, feeds: Feeds) -> float:
    """Smallest cosine over all outputs."""
    a, b = one.run(feeds), other.run(feeds)
    worst = 1.0
    for name in a:
        x, y = a[name].astype(np.float64).ravel(), b[name].astype(np.float64).ravel()
        norm = float(np.linalg.norm(x) * np.linalg.norm(y))
        worst = min(worst, float(x @ y) / norm if norm else 0.0)
    return worst
