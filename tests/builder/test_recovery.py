"""`recover` in builds: of both workloads, in the report, and after a kill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import megacompile
from tests.builder.training_world import build, spec_of

pytest.importorskip("sklearn")

MODEL = """
import numpy as np
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(12, 24), nn.Tanh(), nn.Linear(24, 12)) for _ in range(4))
        self.head = nn.Linear(12, 3)

    def forward(self, x):
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)

def build():
    torch.manual_seed(0)
    return Net().eval()

def samples():
    yield {"x": np.random.default_rng(0).standard_normal((256, 12)).astype(np.float32)}

def evaluate(run):
    x = np.random.default_rng(1).standard_normal((64, 12)).astype(np.float32)
    with torch.no_grad():
        expected = build()(torch.from_numpy(x)).numpy()
    return {"agreement": (run(x=x).argmax(1) == expected.argmax(1)).astype(float)}
"""
RECOVER = {
    "batches": "model.py:samples",
    "distill": {"hidden": ["blocks.?"]},
    "steps": 150,
    "optimizer": {"adamw": {"lr": 5e-3}},
}


def inference(folder: Path, **recover: Any) -> Path:
    (folder / "model.py").write_text(MODEL)
    data = {
        "name": "recovered",
        "model": {"python": "model.py:build"},
        "dims": {"batch": {"min": 1, "typical": 4, "max": 64}},
        "inputs": {"x": {"shape": ["batch", 12]}},
        "outputs": ["y"],
        "data": {"evaluation": {"python": "model.py:evaluate"}},
        "passes": [
            {"share-parameters": {"mode": "group", "every": 2}},
            {"recover": {**RECOVER, **recover}},
        ],
        "backends": ["torchscript"],
        "target": {"threads": 1},
        "benchmark": {"seconds": 0.2, "baselines": ["eager"]},
    }
    path = folder / "spec.yaml"
    path.write_text(yaml.safe_dump(data, sort_keys=False))
    return path


@pytest.mark.slow
def test_the_report_says_what_it_brought_back_and_the_engine_is_half(tmp_path: Path) -> None:
    path = inference(tmp_path)
    result = build(tmp_path, path)
    report = json.loads(result.report_path.read_text())
    (candidate,) = report["candidates"]
    found = report["recovery"]
    before, after = (found[f"metric_{when}"]["agreement"]["value"] for when in ("before", "after"))
    assert before < after
    assert after == pytest.approx(candidate["metric"]["agreement"]["value"], abs=0.02)
    assert candidate["recovery"] == found
    (step,) = (s for s in candidate["steps"] if s["pass"] == "recover")
    assert step["recovery"] == found
    assert step["parameters"] == candidate["parameters"]
    original = report["source"]["parameters"]
    assert candidate["parameters"] == original - 2 * (12 * 24 + 24 + 24 * 12 + 12)
    assert "What recovery brought back" in (result.report_path.parent / "report.html").read_text()
    # Another evaluation hook is another outcome: the step is not taken from the store.
    (tmp_path / "model.py").write_text(MODEL.replace("(64, 12)", "(32, 12)"))
    again = json.loads(build(tmp_path, path).report_path.read_text())["candidates"][0]
    assert [s["cached"] for s in again["steps"] if s["pass"] == "recover"] == [False]


@pytest.mark.slow
def test_killed_in_the_middle_it_goes_on(tmp_path: Path) -> None:
    path = inference(tmp_path, steps=3000, checkpoint_seconds=0.2)
    command = [
        *(sys.executable, "-m", "megacompile", "build", str(path), "--json"),
        *("--build-dir", str(tmp_path / "build"), "--report-dir", str(tmp_path / "report")),
    ]
    environment = {**os.environ, "MEGACOMPILE_CACHE": str(tmp_path / "cache")}
    with subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment,
        start_new_session=True,
    ) as process:
        deadline = time.monotonic() + 120
        while not list((tmp_path / "cache" / "runs").glob("*/checkpoint-*")):
            assert process.poll() is None, "it ended before it was killed"
            assert time.monotonic() < deadline
            time.sleep(0.1)
        os.killpg(process.pid, signal.SIGKILL)
    result = build(tmp_path, path)
    steps = json.loads(result.report_path.read_text())["candidates"][0]["steps"]
    notes = " ".join(note for step in steps for note in step["notes"])
    assert "continued after step" in notes
    assert not list((tmp_path / "cache" / "runs").glob("*")), "nothing is left of a finished run"


@pytest.mark.slow
def test_a_shared_model_is_recovered_before_it_is_trained(tmp_path: Path) -> None:
    path = spec_of(
        tmp_path,
        passes=[
            {"share-parameters": {"mode": "group", "every": 2}},
            {"recover": {"task": {}, "steps": 20, "optimizer": {"adamw": {"lr": 2e-3}}}},
            "mixed-precision",
        ],
    )
    result = build(tmp_path, path)
    report = json.loads(result.report_path.read_text())
    (candidate,) = report["candidates"]
    names = [step["pass"] for step in candidate["steps"]]
    assert names == ["share-parameters", "recover", "training-step", "mixed-precision"]
    assert candidate["status"] != "failed", candidate["reason"]
    assert report["recovery"]["steps"] == 20
    assert report["recovery"]["monitor"] == "held-out loss"
    looks = report["recovery"]["looks"]
    assert min(look["value"] for look in looks) < looks[0]["value"]
    if result.bundle is not None:
        module = megacompile.load(result.bundle)
        assert isinstance(module, torch.nn.Module)
