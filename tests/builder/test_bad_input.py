"""What a user can get wrong: one clear error, early, and nothing left behind."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import megacompile
from megacompile.errors import MegacompileError

MODEL = """
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)
    def forward(self, x):
        return self.layer(x)
def build():
    torch.manual_seed(0)
    return Net()
"""
SPEC = """
name: bad
model: {python: model.py:build}
dims: {n: {min: 1, typical: 4, max: 8}}
inputs: {x: {shape: [n, 4]}}
backends: [onnxruntime]
benchmark: {baselines: [eager], seconds: 0.2}
"""
EVALUATION = SPEC + "data: {evaluation: {python: data.py:evaluate}}\n"
CALIBRATION = (
    SPEC
    + "data: {calibration: {python: data.py:samples}}\npasses: [{quantize: {method: static}}]\n"
)


def forward(body: str) -> str:
    return MODEL.replace("        return self.layer(x)\n", textwrap.indent(body, "        "))


# name: (spec, other files, what the error must say)
CASES: dict[str, tuple[str, dict[str, str], list[str]]] = {
    "unknown key": (SPEC + "buget: {}\n", {}, ["spec.yaml:8:1", "buget", "did you mean 'budget'"]),
    "undeclared dim": (SPEC.replace("[n, 4]", "[m, 4]"), {}, ["spec.yaml:5", "'m'", "declared"]),
    "two faults at once": (
        SPEC.replace("[n, 4]", "[m, 4]") + "buget: {}\n",
        {},
        ["buget", "dim 'm'"],
    ),
    "input forward lacks": (
        SPEC.replace("x: {", "x: {shape: [n, 4]}, mask: {"),
        {},
        ["'mask'", "forward(x"],
    ),
    "input the spec lacks": (
        SPEC,
        {"model.py": MODEL.replace("self, x)", "self, x, scale)")},
        ["'scale'", "inputs"],
    ),
    "missing model file": (SPEC.replace("model.py", "modle.py"), {}, ["modle.py", "model.py"]),
    "missing callable": (SPEC.replace(":build", ":biuld"), {}, ["biuld", "did you mean 'build'"]),
    "model that raises": (
        SPEC,
        {
            "model.py": MODEL
            + "    raise OSError('weights.bin is not there')\n".replace("    raise", "raise")
        },
        ["model.py", "weights.bin is not there"],
    ),
    "weights that don't load": (
        SPEC,
        {
            "model.py": MODEL.replace(
                "    return Net()",
                "    net = Net()\n"
                "    net.load_state_dict({'layer.weight': torch.zeros(3, 3)})\n    return net",
            )
        },
        ["model.py:13", "RuntimeError"],
    ),
    "no model returned": (
        SPEC,
        {"model.py": MODEL.replace("return Net()", "return 7")},
        ["torch.nn.Module", "int"],
    ),
    "forward fails at the smallest size": (
        SPEC,
        {
            "model.py": forward(
                "if x.shape[0] == 1: raise ValueError('batch of one')\nreturn self.layer(x)\n"
            )
        },
        ["min sizes (n=1)", "batch of one", "model.py"],
    ),
    "forward fails at the largest size": (
        SPEC,
        {
            "model.py": forward(
                "if x.shape[0] == 8: raise ValueError('too large')\nreturn self.layer(x)\n"
            )
        },
        ["max sizes (n=8)", "too large"],
    ),
    "random model": (
        SPEC,
        {"model.py": forward("return torch.dropout(self.layer(x), 0.5, True)\n")},
        ["different answers", "randomness"],
    ),
    "input written in place": (
        SPEC,
        {"model.py": forward("x += 1\nreturn self.layer(x)\n")},
        ["'x'", "clone"],
    ),
    "data-dependent branch": (
        SPEC,
        {
            "model.py": forward(
                "if x.sum() > 0:\n    return self.layer(x)\nreturn self.layer(x) * 2\n"
            )
        },
        ["model.py:9", "torch.where"],
    ),
    "empty calibration": (
        CALIBRATION,
        {"data.py": "def samples():\n    return []\n"},
        ["empty", "samples"],
    ),
    "calibration that raises": (
        CALIBRATION,
        {"data.py": "def samples():\n    yield {}['x']\n"},
        ["data.py:2", "KeyError"],
    ),
    "calibration of other inputs": (
        CALIBRATION,
        {"data.py": "def samples():\n    yield {'y': 1}\n"},
        ["'y'", "sample 0"],
    ),
    "static without calibration": (
        SPEC + "passes: [{quantize: {method: static}}]\n",
        {},
        ["spec.yaml:8", "calibration"],
    ),
    "evaluate returns NaN": (
        EVALUATION,
        {"data.py": "def evaluate(run):\n    return {'acc': float('nan')}\n"},
        ["acc", "nan"],
    ),
    "evaluate returns text": (
        EVALUATION,
        {"data.py": "def evaluate(run):\n    return {'acc': 'good'}\n"},
        ["acc"],
    ),
    "evaluate returns nothing": (
        EVALUATION,
        {"data.py": "def evaluate(run):\n    return {}\n"},
        ["no metrics"],
    ),
    "evaluate raises": (
        EVALUATION,
        {"data.py": "def evaluate(run):\n    return {'a': 1 / 0}\n"},
        ["data.py:2", "ZeroDivisionError"],
    ),
    "custom pass that can't be imported": (
        SPEC + "passes: [own.py:Mine]\n",
        {"own.py": "import nothing_of_that_name\n"},
        ["own.py", "nothing_of_that_name"],
    ),
}


def write(folder: Path, spec: str, files: dict[str, str]) -> Path:
    for name, text in {"model.py": MODEL, **files, "spec.yaml": spec}.items():
        (folder / name).write_text(text)
    return folder / "spec.yaml"


@pytest.mark.parametrize("case", CASES)
def test_one_clear_error(tmp_path: Path, case: str) -> None:
    spec, files, said = CASES[case]
    options = megacompile.Options(
        build_dir=tmp_path / "build", report_dir=tmp_path / "report", cache_dir=tmp_path / "cache"
    )
    path = write(tmp_path, spec, files)
    try:
        result = megacompile.build(path, options)
    except MegacompileError as error:
        code, text = error.exit_code, str(error)
        # Nothing half-written.
        assert not (tmp_path / "build" / "bad").exists()
        assert not (tmp_path / "report").exists()
    else:  # what only a compiler can find is the only candidate's failure, with the same code
        code = result.exit_code
        (candidate,) = result.report.candidates
        text = f"{candidate.reason} {candidate.remedy}"
        assert result.bundle is None
    assert code in (2, 3), text
    for word in said:
        assert word in text, text
    assert not list((tmp_path / "cache" / "writing").glob("*"))


@pytest.mark.parametrize("case", ["unknown key", "model that raises", "evaluate returns NaN"])
def test_the_command_line_shows_no_traceback(tmp_path: Path, case: str) -> None:
    spec, files, said = CASES[case]
    path = write(tmp_path, spec, files)
    done = subprocess.run(
        [sys.executable, "-m", "megacompile", "build", str(path)],
        cwd=tmp_path,
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "MEGACOMPILE_CACHE": str(tmp_path / "cache")},
    )
    assert done.returncode == 2
    assert "Traceback" not in done.stderr + done.stdout
    for word in said:
        assert word in done.stderr
    assert not (tmp_path / "reports").exists()
