"""What `megacompile init` writes plans, fits the model, and says what is left to fill in."""

from __future__ import annotations

import re
from pathlib import Path

import onnx
import pytest
import torch
from onnx import TensorProto, helper

from megacompile.builder.main import resolve_target
from megacompile.commands.spec_writer import to_fill_in, write_spec
from megacompile.errors import MegacompileError, ModelError, SpecError
from megacompile.measure.original import examine
from megacompile.plan.planner import make_plan
from megacompile.spec import Spec, load_spec

SPECS = Path(__file__).resolve().parents[2] / "specs"


def planned(path: Path) -> Spec:
    """The spec of a file, after a plan of it."""
    return make_plan(load_spec(path), resolve_target).spec


def uncommented(path: Path) -> Path:
    """The same spec with its examples switched on."""
    text = re.sub(r"^# ((?:data|passes|budget):|  \w+: )", r"\1", path.read_text(), flags=re.M)
    text = re.sub(r"^(  )# (int8|bf16):", r"\1\2:", text, flags=re.M)
    other = path.with_name("uncommented.yaml")
    other.write_text(text)
    return other


def test_digits_load_with_the_written_spec(tmp_path: Path) -> None:
    path = write_spec(f"{SPECS / 'digits_cnn.py'}:build", tmp_path / "digits.yaml")
    spec = planned(path)
    assert spec.tensors()["image"].shape == ["batch", 1, "height", "width"]
    assert to_fill_in(path) == []
    small = {n: {"min": 8, "typical": 9, "max": 12} for n in ("height", "width")}
    data = spec.model_dump(mode="json", by_alias=True, exclude_unset=True)
    spec = Spec.model_validate({**data, "dims": {**data["dims"], **small}, "benchmark": {}})
    folder = tmp_path / "record"
    folder.mkdir()
    assert examine(spec, path.parent, folder).outputs == ["output"]


def test_an_onnx_file_loads_with_the_written_spec(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    graph = helper.make_graph(
        [
            helper.make_node("Gather", ["table", "ids"], ["rows"]),
            helper.make_node("ReduceSum", ["rows", "axis"], ["y"], keepdims=0),
        ],
        "g",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch_size", "seq len"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [
            helper.make_tensor("table", TensorProto.FLOAT, [7, 2], [float(i) for i in range(14)]),
            helper.make_tensor("axis", TensorProto.INT64, [1], [1]),
        ],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    written = write_spec(str(path), None)
    assert written == path.with_suffix(".yaml")
    spec = planned(written)
    ids = spec.tensors()["ids"]
    assert (ids.shape, ids.dtype, ids.range) == (["batch", "seq_len"], "int64", (0, 6))
    assert spec.model.onnx == "model.onnx"
    folder = tmp_path / "record"
    folder.mkdir()
    assert examine(spec, tmp_path, folder).outputs == ["y"]


def test_constants_and_optional_inputs(models: Path) -> None:
    path = write_spec(f"{models}:Ids", models.with_name("ids.yaml"))
    spec = planned(path)
    assert spec.tensors()["input_ids"].range == (0, 49)
    assert spec.tensors()["attention_mask"].range == (0, 1)
    assert spec.inputs["scale"].value == 2.0
    assert "  # bias: {shape:" in path.read_text()
    planned(uncommented(path))


def test_what_is_not_found_is_marked(models: Path) -> None:
    path = write_spec(f"{models}:Odd", models.with_name("odd.yaml"))
    planned(path)
    lines = to_fill_in(path)
    assert [re.search(r": (\w+): ", line)[1] for line in lines] == [
        "batch",
        "features",
        "state",
        "n",
    ]  # type: ignore[index]
    assert "no sizes were found" in path.read_text()


@pytest.mark.parametrize("kind", ["exported", "torchscript"])
def test_torch_files(kind: str, tmp_path: Path) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(5, 4)).eval()
    example = torch.randn(3, 5)
    if kind == "exported":
        path = tmp_path / "m.pt2"
        batch = torch.export.Dim("batch", min=2, max=12)
        program = torch.export.export(module, (example,), dynamic_shapes=({0: batch},))
        torch.export.save(program, path)
    else:
        path = tmp_path / "m.pt"
        torch.jit.trace(module, example).save(str(path))
    spec = planned(write_spec(str(path), None))
    assert [t.shape for t in spec.tensors().values()] == [["batch", 5]]
    if kind == "exported":
        assert (spec.dims["batch"].min, spec.dims["batch"].max) == (2, 12)


def test_it_overwrites_nothing(models: Path) -> None:
    path = models.with_name("mine.yaml")
    path.write_text("mine")
    with pytest.raises(SpecError, match="overwrites nothing"):
        write_spec(f"{models}:linear", path)
    assert path.read_text() == "mine"


@pytest.mark.parametrize(
    ("model", "error", "message"),
    [
        ("nothing", SpecError, "names no model"),
        ("nothing.onnx", SpecError, "no such file"),
        ("{models}:lineer", SpecError, "did you mean 'linear'"),
        ("{models}:number", ModelError, "returns no model"),
        ("{models}:breaks", ModelError, "no weights here"),
        ("no_such_package.x:build", SpecError, "no Python module"),
    ],
)
def test_errors(
    model: str, error: type[MegacompileError], message: str, models: Path, tmp_path: Path
) -> None:
    with pytest.raises(error, match=re.escape(message)):
        write_spec(model.format(models=models), tmp_path / "out.yaml")
    assert not (tmp_path / "out.yaml").exists()
