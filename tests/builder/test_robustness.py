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
from tests.builder.inference_world import options, write


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
