"""The parser's complaints, in words a user can act on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

import megacompile
from megacompile.engines.tensorrt.backend import TensorRT
from megacompile.engines.tensorrt.parsing import clean, module_paths, remedy_of
from megacompile.errors import BackendError, MegacompileError
from tests.engines.tensorrt.networks import (
    INVERSE,
    TARGET,
    matmul,
    needs_rtx,
    onnx_file,
    spec,
)
from tests.field import world
from tests.field.world import tensor

pytestmark = needs_rtx


def _refusal(folder: Path, data: dict[str, Any], model: str) -> MegacompileError:
    world.write(folder, {"model.py": model})
    (folder / "net.yaml").write_text(json.dumps(data))
    options = megacompile.Options(
        build_dir=folder / "build", report_dir=folder / "report", cache_dir=folder / "cache"
    )
    from megacompile.builder import candidates as steps

    caught: list[MegacompileError] = []
    original = steps._in_process

    def keep(job: Any, outcome: Any, *rest: Any) -> None:
        original(job, outcome, *rest)
        if outcome.error is not None:
            caught.append(outcome.error)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(steps, "_in_process", keep)
        megacompile.build(folder / "net.yaml", options)
    return caught[0]


def test_a_refused_operator_is_named_with_its_module(tmp_path: Path) -> None:
    data = spec(inputs={"x": tensor("n", 3, 3)})
    error = _refusal(tmp_path, data, INVERSE)
    assert "'Det'" in error.what
    assert "module 'head'" in str(error.where)
    assert error.remedy


def test_check_operators_lists_all_of_them(tmp_path: Path) -> None:
    form = onnx_file(
        tmp_path / "bad.onnx",
        [
            helper.make_node("Unique", ["x"], ["u"], name="first"),
            helper.make_node("Relu", ["u"], ["r"], name="fine"),
            helper.make_node("Unique", ["r"], ["y"], name="second"),
        ],
        {},
        ["n", 8],
        ["m"],
    )
    found = TensorRT().check_operators(form)
    assert [(one.operator, one.node) for one in found] == [
        ("Unique", "first"),
        ("Unique", "second"),
    ]
    assert TensorRT().check_operators(matmul(tmp_path)) == []


def test_plan_check_operators(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from megacompile.commands.cli import main

    monkeypatch.setenv("MEGACOMPILE_CACHE", str(tmp_path / "cache"))
    world.write(tmp_path, {"model.py": INVERSE})
    (tmp_path / "net.yaml").write_text(json.dumps(spec(inputs={"x": tensor("n", 3, 3)})))
    with pytest.raises(SystemExit) as caught:
        main(["plan", "--check-operators", str(tmp_path / "net.yaml")])
    assert caught.value.code == 4
    shown = capsys.readouterr().out
    assert "does not take 1 nodes" in shown
    assert "(Det) of module 'head'" in shown


def test_zero_points_in_a_users_own_file(tmp_path: Path) -> None:
    scale, zero = np.float32(0.1), np.uint8(7)
    form = onnx_file(
        tmp_path / "q.onnx",
        [
            helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], name="q1"),
            helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"], name="d1"),
        ],
        {"s": scale, "z": zero},
        ["n", 8],
        ["n", 8],
    )
    out = tmp_path / "out"
    out.mkdir()
    with pytest.raises(BackendError) as caught:
        TensorRT().compile(form, TARGET, frozenset(), out)
    assert "q1" in str(caught.value.where)
    assert "symmetric" in str(caught.value.remedy)


def test_messages_lose_the_librarys_own_places() -> None:
    text = (
        "Assertion failed: x must be y\n[checkMacros.cpp::catchCudaError::250] Error Code 1: "
        "Cuda Runtime (In catchCudaError at /_src/common/x.cpp:250)"
    )
    assert clean(text) == "x must be y"
    assert "float16" in remedy_of("FP32 GEMM is not supported")


def test_module_paths_of_someone_elses_file_are_empty(tmp_path: Path) -> None:
    assert module_paths(matmul(tmp_path).path) == {}
