"""A whole build for GPUs that are not here."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest
from onnx import numpy_helper

import megacompile
from megacompile.engines.tensorrt.backend import TensorRT
from megacompile.errors import BackendError, BundleError
from megacompile.models.signature import Signature
from megacompile.report.model import Report
from megacompile.system.gpus import local_archs
from tests.engines.tensorrt.networks import (
    NET,
    TARGET,
    needs_rtx,
    spec,
)
from tests.field import world

pytestmark = needs_rtx


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Report]:
    """A whole build for two architectures that are not here."""
    folder = tmp_path_factory.mktemp("cross")
    world.write(folder, {"model.py": NET})
    data = spec(
        data={
            "calibration": {"python": "model.py:samples", "samples": 16},
            "evaluation": {"python": "model.py:evaluate"},
        },
        variants={
            "int8": {"passes": [{"quantize": {"method": "static"}}]},
            "bf16": {"passes": [{"cast": {"dtype": "bfloat16"}}]},
            "fp16": {"passes": [{"cast": {"dtype": "float16"}}]},
            "fp32": {},
        },
        budget={"cosine": 0.9, "speedup": 1.5, "latency_ms": 5},
        benchmark={"baselines": ["eager", "tensorrt"]},
    )
    (folder / "net.yaml").write_text(json.dumps(data))
    options = megacompile.Options(
        build_dir=folder / "build", report_dir=folder / "report", cache_dir=folder / "cache"
    )
    result = megacompile.build(folder / "net.yaml", options)
    assert result.exit_code == 0
    assert result.bundle is not None
    return result.bundle, result.report


def test_the_report_of_a_cross_build(built: tuple[Path, Report]) -> None:
    _, report = built
    assert report.verdict == "built_not_executed"
    assert report.winner is None
    assert [c.status for c in report.candidates] == ["built"] * 4
    for candidate in report.candidates:
        assert candidate.executed is False
        assert candidate.points == []
        assert candidate.load_seconds is None
        assert {"sm_89.engine", "sm_120.engine"} <= set(candidate.files)
        assert all(size > 0 for size in candidate.files.values())
        assert candidate.metric["sum"].value > 0
        assert {gate.name for gate in candidate.gates} == {"cosine", "dead_channels"}
        assert candidate.lowering is not None
        assert candidate.lowering.error is not None
        assert any("not executed here" in note for note in candidate.lowering.notes)
    eager, plain = report.baselines
    assert eager.status == "unavailable"
    assert plain.executed is False
    assert report.aa_check is None


def test_the_int8_engines_hold_integers(built: tuple[Path, Report]) -> None:
    folder, _ = built
    model = onnx.load(folder / "candidates" / "int8-tensorrt" / "model.onnx")
    zeros = [n for n in model.graph.node if n.op_type == "QuantizeLinear"]
    assert zeros
    values = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    assert all(not values[n.input[2]].any() for n in zeros if len(n.input) > 2)


def test_an_unfinished_bundle_is_neither_run_nor_finished_here(
    built: tuple[Path, Report], tmp_path: Path
) -> None:
    folder, _ = built
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["executed"] is False
    assert manifest["target"]["arch"] == ["sm_89", "sm_120"]
    with pytest.raises(BundleError, match="megacompile finish"):
        megacompile.load(folder)
    if local_archs():
        pytest.skip("this machine has a GPU: finishing is tested elsewhere")
    from megacompile.deploy.finish import finish_bundle

    with pytest.raises(BundleError, match="can't be finished here"):
        finish_bundle(folder, tmp_path, lambda message: None)
    assert json.loads((folder / "manifest.json").read_text()) == manifest


def test_the_engine_says_where_it_runs(built: tuple[Path, Report]) -> None:
    if local_archs():
        pytest.skip("this machine has a GPU")
    folder, _ = built
    out = folder / "candidates" / "fp32-tensorrt"
    signature = Signature.from_dict(json.loads((folder / "manifest.json").read_text())["signature"])
    with pytest.raises(BackendError, match="no NVIDIA GPU"):
        TensorRT().load(out, TARGET, signature)
    with pytest.raises(BackendError, match="no NVIDIA GPU"):
        TensorRT(runtime="onnxruntime").load(out, TARGET, signature)


def test_a_broken_last_form_is_the_candidates_failure(tmp_path: Path) -> None:
    """What can't run here is not taken on trust: the form before it is held to the promise."""
    world.write(
        tmp_path,
        {
            "model.py": NET,
            "wrong.py": """
        from typing import ClassVar
        import onnx
        from onnx import numpy_helper
        from megacompile import Effect, Fact, Onnx, Pass, PassContext, PassResult, Sites

        class Halve(Pass[Onnx, Onnx]):
            name: ClassVar[str] = "halve"
            effect: ClassVar[Effect] = Effect.EXACT
            requires: ClassVar[frozenset[Fact]] = frozenset()
            provides: ClassVar[frozenset[Fact]] = frozenset()
            invalidates: ClassVar[frozenset[Fact]] = frozenset()

            def run(self, model: Onnx, ctx: PassContext) -> PassResult[Onnx]:
                graph = onnx.load(model.path)
                for tensor in graph.graph.initializer:
                    if tensor.data_type == onnx.TensorProto.FLOAT:
                        half = numpy_helper.to_array(tensor) / 2
                        tensor.CopyFrom(numpy_helper.from_array(half, tensor.name))
                path = ctx.work / "model.onnx"
                onnx.save(graph, path)
                sites = Sites("tensor")
                sites.change()
                return PassResult(Onnx(path, model.signature), sites)
    """,
        },
    )
    data = spec(passes=["wrong.py:Halve"], benchmark={"baselines": ["tensorrt"]})
    (tmp_path / "net.yaml").write_text(json.dumps(data))
    options = megacompile.Options(
        build_dir=tmp_path / "build",
        report_dir=tmp_path / "report",
        cache_dir=tmp_path / "cache",
        verify_each=False,
    )
    result = megacompile.build(tmp_path / "net.yaml", options)
    assert result.report.verdict == "failed"
    assert result.exit_code == 4
    assert "promise" in str(result.report.candidates[0].reason)
