"""To ONNX: names, sizes and ties survive; failures name the operator."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from megacompile_passes.convert.to_onnx import ToOnnx
from torch import nn

from megacompile.models import onnxfile
from megacompile.plan.declarations import consumes, produces
from tests.passes import models
from tests.passes.convert.conversions import to_onnx
from tests.passes.models import dim, make_eager, tensor


def test_forms() -> None:
    assert (consumes(ToOnnx), produces(ToOnnx)) == ("Exported", "Onnx")


@pytest.mark.parametrize("opset", [17, 18, 20, None])
def test_opset_of_the_backend(opset: int | None, tmp_path: Path) -> None:
    made = to_onnx(models.linear(), tmp_path, opset)
    assert onnxfile.opset(onnxfile.read(made.path)) == (opset or 18)
    models.assert_same(made, models.linear(), sizes=[]) if opset else None


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_16_bit_weights(dtype: torch.dtype, tmp_path: Path) -> None:
    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(8, 8).to(dtype)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x.to(dtype)).float()

    model = make_eager(Half(), {"x": tensor("batch", 8)}, {"batch": dim(1, 2, 4)})
    models.assert_same(to_onnx(model, tmp_path), model, atol=3e-2)


@pytest.mark.parametrize("heads", [2, 8])
def test_grouped_query_attention(heads: int, tmp_path: Path) -> None:
    model = models.grouped_attention(heads)
    models.assert_same(to_onnx(model, tmp_path), model)


@pytest.mark.parametrize(
    "net",
    [nn.GRU(20, 20, batch_first=True), nn.LSTM(20, 16, 2, batch_first=True, bidirectional=True)],
)
def test_recurrent_state_and_length_follow_the_input(net: nn.Module, tmp_path: Path) -> None:
    model = make_eager(
        net, {"input": tensor("batch", "seq", 20)}, {"batch": dim(1, 1, 4), "seq": dim(2, 5, 9)}
    )
    made = to_onnx(model, tmp_path)
    models.assert_same(made, model, sizes=[{"batch": 3, "seq": 9}, {"batch": 1, "seq": 2}])
    shape = onnxfile.read(made.path).graph.output[0].type.tensor_type.shape
    assert [d.dim_param for d in shape.dim][:2] == ["batch", "seq"]


def test_the_same_twice(tmp_path: Path) -> None:
    model = models.tied()
    first, second = to_onnx(model, tmp_path), to_onnx(model, tmp_path)
    assert first.size_bytes() == second.size_bytes()
    assert (first.path.parent / "model.onnx.data").read_bytes() == (
        second.path.parent / "model.onnx.data"
    ).read_bytes()
