"""Killed, interrupted, crashed, crowded, full: the next run goes on, and nothing is lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

import megacompile
from megacompile.errors import MegacompileError
from megacompile.report.model import Report

MODEL = """
import pathlib
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 2)
    def forward(self, x):
        return self.second(torch.relu(self.first(x)))
def build():
    torch.manual_seed(0)
    net = Net()
    weights = pathlib.Path(__file__).with_name("bias.txt")
    if weights.exists():
        nn.init.constant_(net.second.bias, float(weights.read_text()))
    return net
"""
PASSES = """
import os
import signal
import time
from typing import ClassVar
from megacompile import Effect, Fact, Onnx, Eager, Pass, PassContext, PassResult, Sites

class Base(Pass[Eager, Eager]):
    effect: ClassVar[Effect] = Effect.EXACT
    requires: ClassVar[frozenset[Fact]] = frozenset()
    provides: ClassVar[frozenset[Fact]] = frozenset()
    invalidates: ClassVar[frozenset[Fact]] = frozenset()

class Same(Base):
    name: ClassVar[str] = "same"
    value: int = 0
    def run(self, model: Eager, ctx: PassContext) -> PassResult[Eager]:
        return PassResult(model.copy(), Sites("module", 1, 1))

class Slow(Base):
    name: ClassVar[str] = "slow"
    def run(self, model: Eager, ctx: PassContext) -> PassResult[Eager]:
        time.sleep(60)
        return PassResult(model.copy(), Sites("module", 1, 1))

class Crash(Base):
    name: ClassVar[str] = "crash"
    number: int = signal.SIGABRT
    def run(self, model: Eager, ctx: PassContext) -> PassResult[Eager]:
        os.kill(os.getpid(), self.number)
        time.sleep(60)
        return PassResult(model.copy(), Sites("module", 1, 1))

class Lie(Base):
    name: ClassVar[str] = "lie"
    def run(self, model: Eager, ctx: PassContext) -> PassResult[Eager]:
        copy = model.copy()
        copy.module.second.bias.data += 1
        return PassResult(copy, Sites("module", 1, 1))

class Nothing(Base):
    name: ClassVar[str] = "nothing"
    def run(self, model: Eager, ctx: PassContext) -> PassResult[Eager]:
        sites = Sites("module")
        sites.skip("first", "not of the right kind")
        return PassResult(model, sites)
"""


def write(folder: Path, variants: dict[str, list[Any]], name: str = "net") -> Path:
    data = {
        "name": name,
        "model": {"python": "model.py:build"},
        "dims": {"n": {"min": 1, "typical": 4, "max": 8}},
        "inputs": {"x": {"shape": ["n", 8]}},
        "variants": {k: {"passes": p, "backends": ["onnxruntime"]} for k, p in variants.items()},
        "benchmark": {"baselines": ["eager"], "seconds": 0.2},
    }
    (folder / "model.py").write_text(MODEL)
    (folder / "own.py").write_text(PASSES)
    path = folder / f"{name}.json"
    path.write_text(json.dumps(data, indent=2))
    return path


def options(folder: Path, **more: Any) -> megacompile.Options:
    return megacompile.Options(
        build_dir=folder / "build", report_dir=folder / "report", cache_dir=folder / "cache", **more
    )


def start(folder: Path, spec: Path, *more: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "MEGACOMPILE_CACHE": str(folder / "cache")}
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            "megacompile",
            "build",
            str(spec),
            "--json",
            "--build-dir",
            "build",
            "--report-dir",
            "report",
            *more,
        ],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for(process: subprocess.Popen[str], wanted: str) -> list[dict[str, Any]]:
    """Read events until one contains a text."""
    assert process.stdout is not None
    events = []
    for line in process.stdout:
        events.append(json.loads(line))
        if wanted in line:
            return events
    raise AssertionError(f"'{wanted}' never came: {process.stderr and process.stderr.read()}")


def report(folder: Path) -> Report:
    return Report.model_validate_json((folder / "report" / "report.json").read_text())


def workers_of(folder: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter(["cmdline", "environ"]):
        try:
            line = " ".join(process.info["cmdline"] or [])
            mine = (process.info["environ"] or {}).get("MEGACOMPILE_CACHE") == str(folder / "cache")
        except psutil.Error:
            continue
        if "megacompile.system.child" in line and mine:
            found.append(process)
    return found


@pytest.mark.parametrize("moment", ['"step": "to-onnx"', '"loading eager"'])
def test_a_killed_build_goes_on(tmp_path: Path, moment: str) -> None:
    spec = write(tmp_path, {"plain": []})
    process = start(tmp_path, spec)
    wait_for(process, moment)
    process.kill()
    process.wait()
    end = time.monotonic() + 10
    while workers_of(tmp_path) and time.monotonic() < end:
        time.sleep(0.1)
    assert not workers_of(tmp_path)
    assert not (tmp_path / "report").exists()
    result = megacompile.build(spec, options(tmp_path))
    (candidate,) = result.report.candidates
    assert candidate.status == "built"
    assert candidate.steps[0].cached
    if "loading" in moment:
        assert candidate.lowering is not None
        assert candidate.lowering.cached


def test_interrupt_says_one_line_and_can_go_on(tmp_path: Path) -> None:
    process = start(tmp_path, write(tmp_path, {"slow": ["own.py:Slow"]}))
    wait_for(process, '"step": "slow"')
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert errors.strip() == "interrupted; the same command goes on from the last finished step"
    assert not workers_of(tmp_path)


def test_a_second_build_of_the_same_name_is_told(tmp_path: Path) -> None:
    spec = write(tmp_path, {"slow": ["own.py:Slow"]})
    first = start(tmp_path, spec)
    try:
        wait_for(first, '"step": "slow"')
        with pytest.raises(MegacompileError, match="another build of 'net' is running") as caught:
            megacompile.build(spec, options(tmp_path))
        assert str(first.pid) in str(caught.value.got)
    finally:
        first.kill()
        first.communicate()


def test_two_specs_share_a_store_at_once(tmp_path: Path) -> None:
    specs = [write(tmp_path, {"plain": []}, name) for name in ("one", "two")]
    running = [start(tmp_path, s, "--report-dir", f"report-{s.stem}") for s in specs]
    for process, spec in zip(running, specs, strict=True):
        process.communicate(timeout=180)
        text = (tmp_path / f"report-{spec.stem}" / "report.json").read_text()
        assert Report.model_validate_json(text).candidates[0].status == "built"


@pytest.mark.parametrize("number", [signal.SIGABRT, signal.SIGKILL])
def test_a_native_crash_is_one_candidates_failure(tmp_path: Path, number: int) -> None:
    spec = write(tmp_path, {"bad": [{"own.py:Crash": {"number": int(number)}}], "good": []})
    bad, good = megacompile.build(spec, options(tmp_path)).report.candidates
    assert (bad.status, good.status) == ("failed", "built")
    assert bad.failed_step == "crash"
    assert signal.Signals(number).name in str(bad.reason)
    assert "step 'crash'" in str(bad.reason)


@pytest.mark.parametrize("verify_each", [True, False])
def test_a_pass_that_lies_is_named(tmp_path: Path, verify_each: bool) -> None:
    spec = write(tmp_path, {"bad": ["own.py:Same", "own.py:Lie", "simplify"]})
    result = megacompile.build(spec, options(tmp_path, verify_each=verify_each))
    (candidate,) = result.report.candidates
    assert candidate.status == "failed"
    assert "'lie' broke its promise" in str(candidate.reason)
    assert ("bisection" in str(candidate.reason)) == (not verify_each)
    assert result.exit_code == 4
    assert result.bundle is None


def test_a_pass_without_effect_is_an_error(tmp_path: Path) -> None:
    spec = write(tmp_path, {"bad": ["own.py:Nothing"]})
    (candidate,) = megacompile.build(spec, options(tmp_path)).report.candidates
    assert "'nothing' changed 0 of 1 modules" in str(candidate.reason)
    assert "not of the right kind" in str(candidate.reason)


def test_what_is_stored_and_what_is_done_again(tmp_path: Path) -> None:
    def cached(value: int, **more: Any) -> list[bool]:
        passes = [{"own.py:Same": {"value": value}}, "simplify"]
        found = megacompile.build(write(tmp_path, {"v": passes}), options(tmp_path, **more))
        (candidate,) = found.report.candidates
        assert candidate.lowering is not None
        return [s.cached for s in [*candidate.steps, candidate.lowering]]

    assert not any(cached(1))
    assert all(cached(1))
    assert not any(cached(2))  # the first step's option changed: all after it depends on it
    assert not any(cached(1, resume=False))
    # A damaged entry is built again.
    for file in (tmp_path / "cache" / "entries").glob("*/*/form/model.onnx"):
        file.write_bytes(file.read_bytes()[:-1] + b"\0")
    assert not all(cached(1))
    assert all(cached(1))
    # Weights beside the model changed, the Python file did not.
    (tmp_path / "bias.txt").write_text("3.5")
    assert not any(cached(1))


def test_dump_writes_every_form(tmp_path: Path) -> None:
    spec = write(tmp_path, {"v": ["own.py:Same", "simplify"]})
    megacompile.build(spec, options(tmp_path, dump=tmp_path / "dump"))
    names = sorted(p.name for p in (tmp_path / "dump" / "v-onnxruntime").iterdir())
    assert names == ["00-same-Eager", "01-export-Exported", "02-to-onnx-Onnx", "03-simplify-Onnx"]


def _tmpfs(folder: Path, size: str) -> Path:
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        pytest.skip(f"no small disk can be mounted here: {done.stderr.strip()}")
    return folder


@pytest.mark.parametrize("which", ["cache", "build"])
def test_a_full_disk(tmp_path: Path, which: str) -> None:
    spec = write(tmp_path, {"plain": []})
    megacompile.build(spec, options(tmp_path))
    before = report(tmp_path).created
    small = _tmpfs(tmp_path / "small", "64k")
    try:
        (small / "filler").write_bytes(b"x" * 60_000)
        place = {f"{which}_dir": small / "inside"}
        full = megacompile.Options(
            **{
                "build_dir": tmp_path / "build2",
                "report_dir": tmp_path / "report",
                "cache_dir": tmp_path / "cache",
                **place,
            }
        )
        with pytest.raises(MegacompileError, match="the disk is full") as caught:
            megacompile.build(spec, full)
        assert "free some space" in str(caught.value.remedy)
        assert report(tmp_path).created == before
    finally:
        subprocess.run(["umount", str(small)], check=False)


def test_a_compiler_that_computes_something_else_is_named() -> None:
    from megacompile.builder.manager import _check_lowering
    from megacompile.errors import VerificationError
    from megacompile.measure.instruments import StepRun
    from megacompile.plan.passes import Effect
    from megacompile.report.model import ErrorRecord, Step

    def error(cosine: float) -> ErrorRecord:
        return ErrorRecord(max_abs=1, relative=1, cosine_min=cosine, worst="output 'y'")

    record = Step.model_validate({"pass": "aotinductor", "form": "engine", "effect": "LOSSY"})
    step = StepRun(2, record, Effect.LOSSY, "float32")
    record.error = error(0.99)
    _check_lowering(error(0.995), step)
    record.error = error(-0.06)
    with pytest.raises(VerificationError, match="'aotinductor' computes something else"):
        _check_lowering(error(0.9999), step)
