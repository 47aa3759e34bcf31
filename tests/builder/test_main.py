"""Targets, sources and exit codes of a build."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from megacompile.builder import main
from megacompile.builder.job import Outcome
from megacompile.builder.main import _exit_code, quantized_source, resolve_target
from megacompile.errors import BackendError, DataError, MegacompileError, SpecError
from megacompile.plan.planner import make_plan
from megacompile.spec import Spec, load_spec, load_spec_data
from tests.builder.training_world import SPECS


def spec(**parts: Any) -> Spec:
    data = {
        "name": "net",
        "model": {"onnx": "m.onnx"},
        "inputs": {"x": {"shape": [2, 3]}},
        "backends": ["onnxruntime"],
        **parts,
    }
    found = load_spec_data(data, Path()).spec
    assert found is not None
    return found


def test_the_specs_of_training_plan() -> None:
    plan = make_plan(load_spec(SPECS / "digits_train.yaml"), resolve_target)
    assert [step.pass_.name for step in plan.candidates[0].steps] == ["training-step", "compile"]
    assert plan.baselines == ()


def test_a_target_is_this_machine_unless_the_spec_narrows_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(main, "cpu_isa", lambda: ["avx2", "avx512f"])
    monkeypatch.setattr(main, "thread_budget", lambda: 6)
    found = resolve_target(spec())
    assert (found.device, found.threads, found.isa) == ("cpu", 6, ("avx2", "avx512f"))
    found = resolve_target(spec(target={"threads": 2, "isa": ["avx2"]}))
    assert (found.threads, found.isa) == (2, ("avx2",))
    with pytest.raises(SpecError, match="this CPU has no 'amx_int8'"):
        resolve_target(spec(target={"isa": ["amx_int8"]}))


def test_a_gpu_is_this_machines_or_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main, "local_archs", lambda: ())
    assert resolve_target(spec(target={"device": "cuda", "arch": ["sm_89"]})).arch == ("sm_89",)
    with pytest.raises(SpecError, match="needs to know the GPU"):
        resolve_target(spec(target={"device": "cuda"}))
    monkeypatch.setattr(main, "local_archs", lambda: ("sm_90",))
    assert resolve_target(spec(target={"device": "cuda"})).arch == ("sm_90",)


def code(verdict: str, *errors: MegacompileError | None) -> int:
    report: Any = SimpleNamespace(verdict=verdict)
    plan: Any = None
    return _exit_code(report, [Outcome(plan, error=error) for error in errors])


@pytest.mark.parametrize(
    ("verdict", "expected"),
    [
        ("improved", 0),
        ("built_not_executed", 0),
        ("no_improvement", 3),
        ("outside_budget", 3),
        ("failed", 4),
    ],
)
def test_exit_codes(verdict: str, expected: int) -> None:
    assert code(verdict, None) == expected


def test_a_fault_of_the_user_in_every_candidate_is_the_exit_code() -> None:
    mine, ours = DataError(what="no data"), BackendError(what="refused")
    assert code("failed", mine) == mine.exit_code == 2
    assert code("failed", mine, None) == 4
    assert code("failed", ours, mine) == max(ours.exit_code, 2)
    assert code("outside_budget", mine) == 3


def test_a_quantized_onnx_file_is_told_by_its_operators(tmp_path: Path) -> None:
    data = {
        "name": "net",
        "model": {"onnx": "m.onnx"},
        "inputs": {"x": {"shape": [2, 3]}},
        "backends": ["onnxruntime"],
    }
    loaded = load_spec_data(data, tmp_path)
    for content, expected in ((b"..DequantizeLinear..", True), (b"..Linear..", False)):
        (tmp_path / "m.onnx").write_bytes(content)
        assert quantized_source(loaded) is expected
    other = load_spec_data({**data, "model": {"python": "m.py:build"}}, tmp_path)
    assert not quantized_source(other)
