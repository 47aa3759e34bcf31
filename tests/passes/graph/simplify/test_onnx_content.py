"""What simplification must not lose or multiply: ties, quantization, size."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxsim
import pytest
from megacompile_passes.graph.simplify.onnx import SimplifyOnnx

from tests.passes.context import make_context
from tests.passes.graph.simplify.onnx_nodes import F32, RNG, foldable, node, weight
from tests.passes.onnx_models import onnx_model, operators


def test_tied_weight_stays_one(tmp_path: Path) -> None:
    nodes = [
        node("Gather", ["W", "ids"], ["e"]),
        node("Transpose", ["W"], ["WT"], perm=[1, 0]),
        node("Identity", ["e"], ["i"]),
        node("MatMul", ["i", "WT"], ["y"]),
    ]
    model = onnx_model(
        tmp_path,
        nodes,
        {"ids": ([1, "seq"], "int64")},
        {"y": [1, "seq", 512]},
        {"W": weight(512, 64)},
    )
    result = SimplifyOnnx().run(model, make_context(tmp_path))
    assert result.model.parameters() == 512 * 64
    assert result.model.size_bytes() <= 1.1 * model.size_bytes()
    assert "Identity" not in operators(result.model)
    assert "65536" in " ".join(result.notes)


def test_quantized_pairs_survive(tmp_path: Path) -> None:
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["xq"]),
        node("DequantizeLinear", ["xq", "s", "z"], ["xd"]),
        node("DequantizeLinear", ["W", "s", "z"], ["wd"]),
        node("MatMul", ["xd", "wd"], ["m"]),
        node("Identity", ["m"], ["y"]),
    ]
    model = onnx_model(
        tmp_path,
        nodes,
        {"x": (["batch", 64], "float32")},
        {"y": ["batch", 64]},
        {
            "W": RNG.integers(-127, 127, (64, 64)).astype(np.int8),
            "s": np.array(0.01, F32),
            "z": np.array(0, np.int8),
        },
    )
    result = SimplifyOnnx().run(model, make_context(tmp_path))
    assert operators(result.model).count("DequantizeLinear") == 2
    assert result.model.size_bytes() <= 1.1 * model.size_bytes()


def test_what_still_grows_is_thrown_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def simplify(model: onnx.ModelProto, **options: object) -> tuple[onnx.ModelProto, bool]:
        grown = onnx.ModelProto()
        grown.CopyFrom(model)
        big = onnx.numpy_helper.from_array(np.zeros(2_000_000, np.int8), "big")
        grown.graph.node.append(node("Constant", [], ["big"], value=big))
        return grown, True

    monkeypatch.setattr(onnxsim, "simplify", simplify)
    model = foldable(tmp_path)
    ctx = make_context(tmp_path)
    result = SimplifyOnnx().run(model, ctx)
    assert result.model is model
    assert "kept the original" in result.notes[-1]
    assert "simplify grew the model x" in result.notes[-1]
    assert not list(ctx.work.iterdir())
