"""What a forward's parameters, a program or an ONNX file say of a model's inputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from onnx import TensorProto, helper
from torch import nn

from megacompile.commands.guesses import of_module, of_onnx, of_program, of_script
from megacompile.errors import ModelError


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 4)

    def forward(self, x: Any, depth: int, mask: Any = None, scale: float = 2.0) -> Any:
        return self.layer(x) * scale


def test_a_forwards_parameters() -> None:
    found = of_module(Net())
    assert list(found.tensors) == ["x"]
    assert found.constants == {"depth": 1, "scale": 2.0}
    assert list(found.unknown) == ["depth"]
    assert found.optional == ["mask"]
    assert found.order == ["x", "depth", "scale"]


def test_where_all_are_optional_the_first_is_the_input() -> None:
    class Optional(nn.Module):
        def forward(self, ids: Any = None, mask: Any = None) -> Any:
            return ids

    found = of_module(Optional())
    assert list(found.tensors) == ["ids"]
    assert found.optional == ["mask"]


def test_inputs_without_a_name_get_ours() -> None:
    class Any_(nn.Module):
        def forward(self, *args: Any) -> Any:
            return args

    found = of_module(Any_())
    assert list(found.tensors) == ["input"]
    assert "the name `input` is ours" in found.notes[0]


def test_a_script_takes_tensors_alone() -> None:
    assert list(of_script(torch.jit.script(nn.Linear(5, 4))).tensors) == ["input"]

    class Scaled(nn.Module):
        def forward(self, x: torch.Tensor, scale: float) -> torch.Tensor:
            return x * scale

    with pytest.raises(ModelError, match="'scale' of the TorchScript's forward is no tensor"):
        of_script(torch.jit.script(Scaled()))


def test_a_program_knows_its_sizes() -> None:
    dims = ({0: torch.export.Dim("n", min=2, max=12)},)
    program = torch.export.export(nn.Linear(5, 4), (torch.randn(3, 5),), dynamic_shapes=dims)
    found, known = of_program(program)
    assert known == {"batch": (2, 4, 12)}
    assert [one.shape for (one,) in found.tensors.values()] == [("batch", 5)]


@pytest.mark.parametrize(
    ("given", "shape"),
    [
        (["N", 3, 32, 32], ("batch", 3, 32, 32)),
        (["unk__1", 3, "unk__2", None], ("batch", 3, "height", "width")),
        (["batch_size", "seq len"], ("batch", "seq_len")),
        ([None, "DynamicDimension.1"], ("batch", "x_1")),
    ],
)
def test_sizes_of_an_onnx_file(given: list[Any], shape: tuple[Any, ...], tmp_path: Path) -> None:
    (found,) = of_onnx(onnx_file(tmp_path, given)).tensors["x"]
    assert found.shape == shape
    assert found.dtype == "float32"


def test_a_dtype_that_can_not_be_compiled_for(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="a dtype that can't be compiled for") as caught:
        of_onnx(onnx_file(tmp_path, [2], TensorProto.COMPLEX64))
    assert caught.value.got == "complex64"


def test_integers_without_a_table_need_a_range(tmp_path: Path) -> None:
    assert of_onnx(onnx_file(tmp_path, [2], TensorProto.INT64)).unknown == {
        "x": "the range of its values"
    }


def onnx_file(folder: Path, shape: list[Any], dtype: int = TensorProto.FLOAT) -> Path:
    given, taken = (helper.make_tensor_value_info(name, dtype, shape) for name in "xy")
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", [given], [taken])
    path = folder / "m.onnx"
    onnx.save(helper.make_model(graph), path)
    return path
