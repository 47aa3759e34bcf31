"""A bundle timed on this machine, against itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from megacompile.deploy.bench import render_bench
from tests.commands.shell import ended
from tests.engines.bundles import make


def test_a_bundle_is_checked_and_timed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bundle = make(tmp_path)
    code, out, _ = ended(["bench", str(bundle), "--seconds", "0.2", "--json"], capsys)
    assert code == 0
    found = json.loads(out)
    (point,) = found["points"]
    assert point["dims"] == {"n": 3}
    assert 0 < point["p50"] <= point["p95"] <= point["p99"]
    assert point["aa"]["low"] <= point["aa"]["ratio"] <= point["aa"]["high"]
    assert found["samples_cosine"] == pytest.approx(1)


def test_the_text_says_what_can_be_trusted() -> None:
    aa = {"ratio": 1.2, "low": 1.1, "high": 1.3, "passed": False}
    point = {
        "dims": {"n": 3},
        "p50": 2.0,
        "p95": 3.0,
        "p99": 4.0,
        "peak_memory_mb": 120.4,
        "aa": aa,
    }
    trusted = {**point, "dims": {}, "aa": {**aa, "passed": True}}
    found = {
        "name": "net",
        "candidate": "fp32/onnxruntime",
        "precision": "float32",
        "samples_cosine": 0.9999,
        "load_seconds": 0.25,
        "points": [point, trusted],
        "environment": {"machine": "a machine", "threads": 2},
    }
    lines = render_bench(found).splitlines()
    assert lines[0] == "net: fp32/onnxruntime (float32) on a machine, 2 threads"
    assert lines[1] == "answers to the bundle's samples: cosine 0.999900"
    assert lines[3].startswith("n=3: p50 2.000 ms, p95 3.000 ms, p99 4.000 ms, 120 MB")
    assert lines[3].endswith("NOT TRUSTED: two processes of it differ")
    assert lines[4].startswith("fixed size: ")
    assert "NOT TRUSTED" not in lines[4]
