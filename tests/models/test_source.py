"""Models that come as torch.export archives and TorchScript files, and specs made in Python."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import megacompile
from megacompile.errors import ModelError
from megacompile.models.source import load_original

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
    program = torch.export.export(
        model, *arguments, dynamic_shapes={"x": {0: size}, "scale": {0: size}}
    )
    torch.export.save(program, folder / "m.pt2")
    return model


def options(folder: Path) -> megacompile.Options:
    return megacompile.Options(
        build_dir=folder / "build", report_dir=folder / "report", cache_dir=folder / "cache"
    )


def test_exported_program(tmp_path: Path) -> None:
    model = export(tmp_path)
    result = megacompile.build(
        spec("exported", "m.pt2", "onnxruntime"), options(tmp_path), base=tmp_path
    )
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
    result = megacompile.build(
        spec("torchscript", "m.pt", "torchscript"), options(tmp_path), base=tmp_path
    )
    (candidate,) = result.report.candidates
    assert candidate.lowering is not None
    assert candidate.lowering.error is not None
    assert candidate.lowering.error.max_abs == 0


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "m.pt").write_bytes(b"no model")
    with pytest.raises(ModelError, match="can't be read"):
        load_original(spec("torchscript", "m.pt", "torchscript"), tmp_path)
