"""Models from any of the four kinds of source, and specs made in Python."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
import yaml
from onnx import TensorProto, helper
from torch import nn

import megacompile
from megacompile.errors import ModelError, SpecError
from megacompile.models.source import fingerprint, load_original, source_path
from megacompile.system import hooks

INPUTS = {"x": {"shape": ["B", 8]}, "scale": {"shape": ["B", 1]}}
DIMS = {"B": {"min": 1, "typical": 4, "max": 16}}


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> dict[str, torch.Tensor]:
        hidden = torch.relu(self.first(x))
        return {"y": self.second(hidden) * scale, "h": hidden}


class TupleModel(Model):
    def forward(  # type: ignore[override]
        self, x: torch.Tensor, scale: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = torch.relu(self.first(x))
        return self.second(hidden) * scale, hidden


def spec(kind: str, file: str, backend: str) -> megacompile.Spec:
    return megacompile.Spec.model_validate(
        {
            "name": kind,
            "model": {kind: file},
            "dims": DIMS,
            "inputs": INPUTS,
            "backends": [backend],
            "benchmark": {"baselines": ["eager"], "seconds": 0.3},
        }
    )


def export(folder: Path, keyword: bool = False) -> Model:
    torch.manual_seed(0)
    model = Model().eval()
    size = torch.export.Dim("B", min=1, max=16)
    x, scale = torch.randn(4, 8), torch.randn(4, 1)
    arguments = ((x,), {"scale": scale}) if keyword else ((x, scale), {})
    shapes = {"x": {0: size}, "scale": {0: size}}
    program = torch.export.export(model, *arguments, dynamic_shapes=shapes)
    torch.export.save(program, folder / "m.pt2")
    return model


def options(folder: Path) -> megacompile.Options:
    return megacompile.Options(
        build_dir=folder / "build", report_dir=folder / "report", cache_dir=folder / "cache"
    )


def test_exported_program(tmp_path: Path) -> None:
    model = export(tmp_path)
    given = spec("exported", "m.pt2", "onnxruntime")
    result = megacompile.build(given, options(tmp_path), base=tmp_path)
    (candidate,) = result.report.candidates
    check, threads = result.report.aa_check, result.report.environment.threads
    assert check is not None  # C52: the baseline races against itself, in the same thread budget
    assert 1 <= threads <= len(os.sched_getaffinity(0))
    assert check.passed or all(p.speedup is None for p in candidate.points)
    assert [step.pass_ for step in candidate.steps] == ["export", "to-onnx"]
    assert candidate.lowering is not None
    assert candidate.lowering.error is not None
    assert candidate.lowering.error.max_abs < 1e-5
    if result.bundle is not None:  # whether it is faster is the machine's to say
        x, scale = np.ones((3, 8), np.float32), np.full((3, 1), 2, np.float32)
        found = megacompile.load(result.bundle)(x=x, scale=scale)
        expected = model(torch.from_numpy(x), torch.from_numpy(scale))
        np.testing.assert_allclose(found["y"], expected["y"].detach().numpy(), atol=1e-5)


def test_exported_program_with_a_keyword(tmp_path: Path) -> None:
    model = export(tmp_path, keyword=True)
    form = load_original(spec("exported", "m.pt2", "onnxruntime"), tmp_path)
    feeds = {"x": np.ones((2, 8), np.float32), "scale": np.ones((2, 1), np.float32)}
    expected = model(torch.ones(2, 8), torch.ones(2, 1))
    torch.testing.assert_close(form.call(feeds), expected)  # type: ignore[attr-defined]


def test_exported_program_with_other_inputs(tmp_path: Path) -> None:
    export(tmp_path, keyword=True)
    right = spec("exported", "m.pt2", "onnxruntime")
    wrong = right.model_copy(update={"inputs": {"x": right.inputs["x"]}})
    with pytest.raises(ModelError, match="exported with"):
        load_original(wrong, tmp_path)


def test_torchscript_file(tmp_path: Path) -> None:
    torch.jit.script(TupleModel().eval()).save(str(tmp_path / "m.pt"))
    given = spec("torchscript", "m.pt", "torchscript")
    result = megacompile.build(given, options(tmp_path), base=tmp_path)
    (candidate,) = result.report.candidates
    assert candidate.lowering is not None
    assert candidate.lowering.error is not None
    assert candidate.lowering.error.max_abs == 0


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "m.pt").write_bytes(b"no model")
    with pytest.raises(ModelError, match="can't be read"):
        load_original(spec("torchscript", "m.pt", "torchscript"), tmp_path)


PYTHON = """
import torch
made = torch.nn.Linear(8, 4).train()
def build(): return made
def nothing(): return 3
"""


def python_spec(name: str, **inputs: object) -> megacompile.Spec:
    data = {"name": "p", "model": {"python": f"m.py:{name}"}, "dims": DIMS, "inputs": inputs}
    return megacompile.Spec.model_validate(data)


def test_what_the_users_code_returned_stays_untouched(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text(PYTHON)
    given = python_spec("build", input=INPUTS["x"])
    form = load_original(given, tmp_path)
    original = hooks.load("m.py:made", tmp_path)
    assert original.training
    assert not form.module.training  # type: ignore[attr-defined]
    assert form.module.weight.data_ptr() != original.weight.data_ptr()  # type: ignore[attr-defined]
    assert fingerprint(form) == fingerprint(load_original(given, tmp_path))
    with pytest.raises(ModelError, match=r"returns no model(.|\n)*got: int"):
        load_original(python_spec("nothing", input=INPUTS["x"]), tmp_path)
    with pytest.raises(ModelError, match="input 'more' is no parameter"):
        load_original(python_spec("build", input=INPUTS["x"], more=INPUTS["x"]), tmp_path)


def test_where_a_models_file_is_looked_for(tmp_path: Path) -> None:
    (tmp_path / "m.pt2").write_bytes(b"")
    assert source_path(spec("exported", "m.pt2", "x"), tmp_path) == tmp_path / "m.pt2"
    inside = source_path(spec("onnx", "package:yaml/__init__.py", "x"), tmp_path)
    assert inside == Path(yaml.__file__)
    with pytest.raises(SpecError, match=r"no such file 'm\.pt3'(.|\n)*did you mean 'm\.pt2'"):
        source_path(spec("exported", "m.pt3", "x"), tmp_path)
    with pytest.raises(SpecError, match="pip install not-there"):
        source_path(spec("onnx", "package:not_there/m.onnx", "x"), tmp_path)


def onnx_file(folder: Path, **inputs: tuple[int, list[object]]) -> None:
    """Inputs that go through to outputs `y0`, `y1`, …"""
    starts, ends, nodes = [], [], []
    for number, (name, (dtype, shape)) in enumerate(inputs.items()):
        starts.append(helper.make_tensor_value_info(name, dtype, shape))
        ends.append(helper.make_tensor_value_info(f"y{number}", dtype, None))
        nodes.append(helper.make_node("Identity", [name], [f"y{number}"]))
    graph = helper.make_graph(nodes, "g", starts, ends)
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), folder / "m.onnx")


def onnx_spec(outputs: list[str] | None = None, **inputs: object) -> megacompile.Spec:
    data = {"name": "o", "model": {"onnx": "m.onnx"}, "inputs": inputs}
    dims = DIMS if "'B'" in str(inputs) else {}
    return megacompile.Spec.model_validate({**data, "dims": dims, "outputs": outputs})


def test_an_onnx_file_says_its_outputs(tmp_path: Path) -> None:
    onnx_file(tmp_path, x=(TensorProto.FLOAT, ["n", 8]), scale=(TensorProto.FLOAT, [-1, 1]))
    signature = load_original(onnx_spec(**INPUTS), tmp_path).signature
    assert signature.outputs == ("y0", "y1")
    assert signature.structure == {"dict": {n: {"tensor": n} for n in ("y0", "y1")}}
    one = load_original(onnx_spec(["y1"], **INPUTS), tmp_path).signature
    assert (one.outputs, one.structure) == (("y1",), {"tensor": "y1"})


@pytest.mark.parametrize(
    ("outputs", "inputs", "message"),
    [
        (None, {"y": INPUTS["x"]}, "the ONNX model has no input 'y'"),
        (None, {"x": {"value": 3}}, "must be a tensor"),
        (None, {"x": {"shape": ["B", 8], "dtype": "int64"}}, "another dtype in the ONNX model"),
        (None, {"x": {"shape": ["B", 9]}}, r"another shape(.|\n)*'n', 8(.|\n)*'B', 9"),
        (None, {"x": {"shape": [8]}}, "another shape"),
        (["y9"], INPUTS, r"no output 'y9'(.|\n)*known: y0, y1"),
        (None, {"x": INPUTS["x"]}, "needs 'scale', which the spec lacks"),
    ],
)
def test_what_an_onnx_file_does_not_fit(
    outputs: list[str] | None, inputs: dict[str, object], message: str, tmp_path: Path
) -> None:
    onnx_file(tmp_path, x=(TensorProto.FLOAT, ["n", 8]), scale=(TensorProto.FLOAT, ["n", 1]))
    with pytest.raises(ModelError, match=message):
        load_original(onnx_spec(outputs, **inputs), tmp_path)
