"""`megacompile doctor` says what this machine can do."""

from __future__ import annotations

import json
from typing import Any

import pytest

from megacompile import builder
from megacompile.measure.ceilings import Ceilings
from megacompile.plan import registry
from tests.commands.shell import ended


@pytest.fixture(autouse=True)
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Ceilings without the measuring, and what was asked for."""
    calls: list[dict[str, Any]] = []

    def ceilings(machine: Any, cache: Any, say: Any, **more: Any) -> Ceilings:
        calls.append({"threads": machine.threads, "store": str(cache.root), **more})
        return Ceilings({"float32": 1.25e11, "int8": 5e11}, 2.5e10)

    monkeypatch.setattr(builder, "machine_ceilings", ceilings)
    return calls


def test_ceilings_are_measured_anew(
    asked: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = ended(["doctor"], capsys)
    assert code == 0
    assert [one["fresh"] for one in asked] == [True]
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "matrix products in float32 125 GOP/s" in lines
    assert "matrix products in int8 500 GOP/s" in lines
    assert "memory bandwidth 25.0 GB/s" in lines
    assert f"threads {asked[0]['threads']} (this process's affinity and cgroup)" in lines


def test_every_backend_has_a_state(capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(ended(["doctor", "--json"], capsys)[1])
    assert found["rates"] == {"float32": 1.25e11, "int8": 5e11}
    assert found["bandwidth"] == 2.5e10
    assert sorted(found["backends"]) == sorted(registry.backend_table())
    assert found["backends"]["onnxruntime"] == "available"
    assert found["backends"]["torch-tensorrt"] != "available"
    assert found["environment"]["threads"] >= 1


def test_the_text_says_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(ended(["doctor", "--json"], capsys)[1])
    out = ended(["doctor"], capsys)[1]
    for name, state in found["backends"].items():
        assert f"{name:<14} {state}" in out
