"""Steps measured: slow data, workers that die, runs that are interrupted, several processes."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from megacompile.builder.main import Result
from megacompile.errors import DataError
from megacompile.measure import trainer
from tests.builder.training_world import SPECS, build, spec_of

pytest.importorskip("sklearn")


DIES = """
import os
import torch
from digits_train import _digits
class Images(torch.utils.data.Dataset):
    calls = 0
    def __init__(self):
        self.images, self.labels = _digits()
    def __len__(self):
        return len(self.labels)
    def __getitem__(self, index):
        self.calls += 1
        if self.calls > 16 * 10:
            os._exit(3)
        return {"image": self.images[index], "label": self.labels[index]}
def batches():
    return Images()
"""


@pytest.mark.slow
def test_a_worker_that_dies_during_the_measured_run(tmp_path: Path) -> None:
    """All went well until then; without the plain run there is nothing to compare with."""
    (tmp_path / "data.py").write_text(DIES)
    path = spec_of(
        tmp_path,
        passes=["mixed-precision"],
        train={"batches": "data.py:batches", "workers": 1, "steps": 30},
    )
    with pytest.raises(DataError, match="a worker process of") as caught:
        build(tmp_path, path)
    assert caught.value.exit_code == 2


SLEEPS = (
    DIES.replace("self.calls > 16 * 10", "index < 0")
    .replace("        return {", "        time.sleep(0.005)\n        return {")
    .replace("import os", "import os, time")
)


@pytest.mark.slow
def test_lmdb_and_slow_data_from_end_to_end(tmp_path: Path) -> None:
    """The digits behind a slow Dataset, and the same digits out of LMDB."""
    (tmp_path / "data.py").write_text(SLEEPS.replace("sleep(0.005)", "sleep(0.0)"))
    shutil.copyfile(SPECS / "digits_train.py", tmp_path / "digits_train.py")
    command = [
        sys.executable,
        "-m",
        "megacompile",
        "write-lmdb",
        f"{tmp_path}/data.py:batches",
        str(tmp_path / "digits"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "1,797 samples" in done.stdout
    assert "image: float32 [8, 8]" in done.stdout

    (tmp_path / "data.py").write_text(SLEEPS)
    curves, reports = [], []
    for batches in ("lmdb:digits", "data.py:batches"):
        path = spec_of(tmp_path, passes=["mixed-precision"], train={"batches": batches})
        result = build(tmp_path, path)
        assert result.report.training is not None
        curves.append(result.report.training.plain.losses)
        reports.append((result.report.training, result.report_path))
    assert curves[0] == curves[1], "the same samples in the same order"
    slow, place = reports[1]
    assert slow.optimised.waiting is not None
    assert slow.optimised.waiting > 0.3, "16 samples sleep for 80 ms"
    assert slow.optimised.waiting_ms is not None
    assert slow.optimised.waiting_ms > 75
    assert slow.optimised.data_start_ms is not None
    assert slow.waiting_remedy is not None
    assert "`workers: 2`" in slow.waiting_remedy
    found = json.loads(place.read_text())["training"]
    assert found["optimised"]["waiting_ms"] == slow.optimised.waiting_ms
    for name in ("report.md", "report.html"):
        text = (place.parent / name).read_text()
        assert "Data: a step waits" in text
        assert "to do: load it with" in text


@pytest.fixture
def request_of(built: tuple[Path, Result], tmp_path: Path) -> dict[str, Any]:
    """What the measuring worker is asked to load."""
    from megacompile.measure.original import read_record
    from megacompile.plan.backends import Machine
    from megacompile.spec import load_spec
    from megacompile.system.cache import Cache

    folder, _ = built
    records = Cache(folder / "cache").root.rglob("original.json")
    loaded = load_spec(folder / "spec.yaml")
    assert loaded.spec is not None
    return {
        "operation": "load",
        "base": str(loaded.base),
        "folder": None,
        "spec": loaded.spec.model_dump(mode="json", by_alias=True, exclude_unset=True),
        "machine": vars(Machine("cpu", 2, ())),
        "original": read_record(next(records).parent).to_dict(),
    }


class Interrupted(Exception):
    pass


def run_curve(request: dict[str, Any], folder: Path, stop: int | None = None) -> dict[str, Any]:
    def send(event: dict[str, Any]) -> None:
        if stop is not None and event.get("done") == stop:
            raise Interrupted

    made = trainer._Trainer(request, send)
    return made.curve({"folder": str(folder), "key": "k"})


@pytest.mark.slow
def test_an_interrupted_run_goes_on(
    request_of: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer, "KEEP_SECONDS", 0.0)
    whole = run_curve(request_of, tmp_path / "whole")
    assert whole["continued"] == 0
    with pytest.raises(Interrupted):
        run_curve(request_of, tmp_path / "run", stop=25)
    assert (tmp_path / "run/checkpoint-24").is_dir()
    rest = run_curve(request_of, tmp_path / "run")
    assert rest["continued"] == 24
    assert rest["losses"] == whole["losses"]
    assert rest["metrics"] == whole["metrics"]
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_damaged_checkpoint_is_passed_over_and_named(
    request_of: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer, "KEEP_SECONDS", 0.0)
    with pytest.raises(Interrupted):
        run_curve(request_of, tmp_path / "run", stop=25)
    file = tmp_path / "run/checkpoint-24/tensors.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    found = run_curve(request_of, tmp_path / "run")
    assert found["continued"] == 23
    assert "checkpoint-24" in found["note"]
    assert "checkpoint-23 is used" in found["note"]
    assert len(found["losses"]) == 40


@pytest.mark.slow
def test_the_same_command_under_torchrun(tmp_path: Path) -> None:
    path = spec_of(
        tmp_path,
        passes=[{"distribute": {"strategy": "ddp"}}],
        train={"verify_steps": 2, "steps": 3},
    )
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "2",
        "--rdzv-backend",
        "c10d",
        "--rdzv-endpoint",
        "localhost:0",
        "-m",
        "megacompile",
        "build",
        str(path),
        "--build-dir",
        str(tmp_path / "build"),
        "--report-dir",
        str(tmp_path / "report"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=500)
    report = json.loads((tmp_path / "report/report.json").read_text())
    [candidate] = report["candidates"]
    assert candidate["status"] == "built", (candidate["reason"], done.stderr[-3000:])
    found = candidate["training"]["distribute"]
    assert found["processes"] == 2
    assert len(found["state_mb_by_rank"]) == 2
