"""Torch-TensorRT without a GPU: what its installed source tells, and why it can't be used here."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from megacompile.engines import torch_tensorrt
from megacompile.engines.torch_tensorrt import TorchTensorRT, read_coverage
from megacompile.errors import BackendError, PlanError
from megacompile.plan.backends import Machine
from megacompile.plan.planner import make_plan
from megacompile.spec.load import load_spec_data
from megacompile.system.gpus import local_archs
from tests.field import world
from tests.field.world import dim, tensor

TARGET = Machine("cuda", 2, (), ("sm_89",))
SPEC = importlib.util.find_spec("torch_tensorrt")
installed = pytest.mark.skipif(SPEC is None, reason="torch-tensorrt is not installed")


def plan(options: dict[str, Any]) -> Any:
    data = world.spec(
        inputs={"x": tensor("n", 4)},
        dims={"n": dim(1, 2, 4)},
        target={"device": "cuda", "arch": ["sm_89"]},
        backends=[{"torch-tensorrt": {"options": options}}],
    )
    return make_plan(load_spec_data(data, Path()), lambda _: TARGET)


@installed
def test_options_are_those_of_the_installed_version() -> None:
    known = torch_tensorrt.parameters()
    assert known is not None
    assert {"min_block_size", "optimization_level", "dryrun"} <= known
    assert plan({"min_block_size": 1}).candidates
    with pytest.raises(PlanError, match="min_block_size"):
        plan({"min_blok_size": 1})
    with pytest.raises(PlanError, match="set by megacompile"):
        plan({"dryrun": True})


@installed
def test_unavailable_without_a_gpu_and_says_why() -> None:
    if local_archs():
        pytest.skip("this machine has a GPU")
    (candidate,) = plan({}).candidates
    assert "no NVIDIA GPU" in str(candidate.unavailable)
    assert "tensorrt" in str(candidate.remedy)


def test_not_installed_gives_the_install_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_tensorrt, "installed", lambda names: {})
    found = TorchTensorRT().availability(TARGET)
    assert "not installed" in str(found.reason)
    assert "pip install torch-tensorrt" in str(found.remedy)


@installed
def test_the_dry_run_of_the_installed_version_is_understood(tmp_path: Path) -> None:
    """The library's own function writes the text; it is taken from the source, since the package
    can't be imported without a driver."""
    coverage = read_coverage(_dry_run(["aten.det.default", "aten.nonzero.default"], 2, tmp_path))
    assert (coverage.operators, coverage.supported, coverage.engines) == (12, 10, 2)
    assert coverage.left == ("aten.det.default", "aten.nonzero.default")
    expected = [
        "10 of 12 operators are TensorRT's, in 2 engines",
        "left to PyTorch: aten.det.default, aten.nonzero.default",
    ]
    assert coverage.notes() == expected
    whole = read_coverage(_dry_run([], 1, tmp_path))
    assert whole.left == ()
    assert len(whole.notes()) == 1


def _dry_run(left: list[str], engines: int, folder: Path) -> str:
    assert SPEC is not None
    assert SPEC.submodule_search_locations
    source = Path(next(iter(SPEC.submodule_search_locations))) / "dynamo" / "_DryRunTracker.py"
    wanted = ("dryrun_stats_display", "input_formatter")
    nodes = [
        node
        for node in ast.parse(source.read_text()).body
        if isinstance(node, ast.FunctionDef) and node.name in wanted
    ]
    for node in nodes:
        node.returns = None
        for one in node.args.args:
            one.annotation = None
    import logging
    import math
    import os

    scope: dict[str, Any] = {
        "os": os,
        "math": math,
        "logger": logging.getLogger("dryrun"),
        "torch": __import__("torch"),
        "Any": Any,
    }
    exec(compile(ast.Module(nodes, []), str(source), "exec"), scope)
    scope["input_formatter"] = lambda shapes, dtypes: "List[Tensor: (1,)@float32]"
    part = SimpleNamespace(
        subgraph_name="_run_on_acc_0",
        subgraph_op_count=5,
        input_shapes=[],
        input_dtypes=[],
        output_shapes=[],
        output_dtypes=[],
    )
    tracker = SimpleNamespace(
        total_ops_in_graph=12,
        supported_ops_in_graph=10,
        unsupported_ops=dict.fromkeys(left, 1),
        to_run_in_torch=left,
        compilation_settings="…",
        per_subgraph_data=[part] * engines,
        tensorrt_graph_count=engines,
        input_shapes=[],
        input_dtypes=[],
        output_shapes=[],
        output_dtypes=[],
    )
    path = folder / f"dryrun-{engines}.txt"
    scope["dryrun_stats_display"](tracker, str(path))
    return path.read_text()


def test_another_layout_of_the_dry_run_is_an_error() -> None:
    with pytest.raises(BackendError, match="can't be read"):
        read_coverage("something else")
