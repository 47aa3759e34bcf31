"""Engines that were built elsewhere, verified, measured and judged here: on a CPU, for real."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import megacompile
from megacompile.deploy.finish import finish_bundle
from megacompile.engines.loading import here
from megacompile.engines.manifest import MANIFEST, read_manifest, seal
from megacompile.engines.unfinished import Part, Unfinished, folder_of, write_unfinished
from megacompile.errors import BundleError
from megacompile.models.tensors import load_arrays, save_arrays
from megacompile.plan.registry import backend_class
from megacompile.report.model import Baseline, Candidate, Provenance, Report, Step
from megacompile.system.machine import environment
from tests.field import world
from tests.field.world import dim, tensor

# Wide enough that the plain interpreter and the optimised graph differ, and a call takes long
# enough to be timed.
MODEL = """
import torch
from torch import nn

def build():
    torch.manual_seed(0)
    return nn.Sequential(*(m for _ in range(4) for m in (nn.Linear(128, 128), nn.GELU())))
"""
BUDGET = {"cosine": 0.99}


def step(name: str) -> Step:
    return Step.model_validate({"pass": name, "form": "engine", "effect": "EXACT"})


def unfinished(folder: Path, budget: dict[str, Any] | None = None, baseline: bool = True) -> Path:
    """A bundle of two ONNX Runtime engines as a machine without this hardware would leave it."""
    data = world.spec(
        name="net",
        inputs={"x": tensor("n", 128)},
        dims={"n": dim(1, 4, 8)},
        backends=["onnxruntime"],
        budget=budget or BUDGET,
        benchmark={"baselines": ["onnxruntime"], "seconds": 2},
    )
    built = world.build(folder, data, {"model.py": MODEL})
    engine = backend_class("onnxruntime")()
    slow = {"graph_optimization": "none"}

    def part(name: str, options: dict[str, Any], baseline: bool) -> Part:
        return Part(
            name,
            "onnxruntime",
            {**engine.model_dump(mode="json"), **options},
            "float32",
            "EXACT",
            "float32",
            baseline,
            folder_of(name),
        )

    parts = [part("fp32/onnxruntime", {}, False), part("onnxruntime", slow, True)]
    parts = parts if baseline else parts[:1]
    candidate = Candidate(
        name="fp32/onnxruntime",
        variant="fp32",
        backend="onnxruntime",
        status="built",
        executed=False,
        lowering=step("onnxruntime"),
    )
    report = Report(
        name="net",
        created="2026-01-01T00:00:00+00:00",
        verdict="built_not_executed",
        sentence="built",
        environment=environment(1),
        spec=data,
        candidates=[candidate],
        baselines=[
            Baseline(name="eager", status="unavailable", reason="no GPU"),
            Baseline(name="onnxruntime", executed=False),
        ],
        provenance=Provenance(command="test", spec_path="net.yaml", spec_sha256="0"),
    )
    contents = Unfinished(
        name="net",
        parts=parts,
        engines=[built.folder] * len(parts),
        signature=built.run.signature,
        spec=data,
        checks=[one for one in built.original.input_sets() if not one.heavy],
        fingerprint=built.original.fingerprint,
        points=[{"n": 4}],
        report=report,
        libraries=engine.libraries,
    )
    return write_unfinished(contents, folder / "build" / "net", here())


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unfinished(tmp_path_factory.mktemp("unfinished"))


@pytest.fixture
def copy(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "build" / "net"))


def reseal(folder: Path) -> None:
    """Hashes that fit the files again, as if the bundle had been written like that."""
    manifest = json.loads((folder / MANIFEST).read_text())
    (folder / MANIFEST).unlink()
    seal({k: v for k, v in manifest.items() if k not in ("files", "sha256")}, folder)


def test_it_is_verified_measured_and_judged(copy: Path, tmp_path: Path) -> None:
    said: list[str] = []
    found = finish_bundle(copy, tmp_path / "report", said.append)
    report = found.report
    assert report.verdict in ("improved", "no_improvement")  # which one is the machine's mood
    (candidate,) = report.candidates
    assert candidate.executed is True
    assert candidate.points[0].latency_ms.p50 > 0
    assert candidate.lowering is not None
    assert candidate.lowering.error is not None
    assert candidate.lowering.error.cosine_min > 0.999
    assert candidate.size_bytes
    assert [gate.name for gate in candidate.gates] == ["cosine", "dead_channels"]
    plain, eager = report.baselines
    assert plain.name == "onnxruntime"
    assert plain.points
    assert eager.points == []
    assert report.aa_check is not None
    assert any("not raced here: eager" in text for text in report.warnings)
    assert (tmp_path / "report" / "report.html").is_file()
    if report.verdict != "improved":
        assert found.bundle is None
        assert read_manifest(copy)["executed"] is False
        return
    manifest = read_manifest(copy)
    assert manifest["executed"] is True
    assert manifest["candidate"] == "fp32/onnxruntime"
    x = np.ones((3, 128), np.float32)
    assert megacompile.load(copy)(x=x).shape == (3, 128)
    with pytest.raises(BundleError, match="is finished"):
        finish_bundle(copy, tmp_path / "report", said.append)


def test_wrong_answers_are_found(copy: Path, tmp_path: Path) -> None:
    """The original's stored answers, not the engine's own, are what it is held against."""
    path = copy / "checks" / "0.reference.npz"
    answers = load_arrays(path)
    save_arrays(path, {name: array + 1 for name, array in answers.items()})
    reseal(copy)
    found = finish_bundle(copy, tmp_path / "report", lambda message: None)
    assert found.report.verdict == "failed"
    assert found.bundle is None
    assert "promise" in str(found.report.candidates[0].reason)
    assert read_manifest(copy)["executed"] is False


def test_a_budget_is_judged_here(tmp_path: Path) -> None:
    folder = unfinished(tmp_path, {"latency_ms": 1e-6})
    found = finish_bundle(folder, tmp_path / "report", lambda message: None)
    (candidate,) = found.report.candidates
    assert candidate.status == "outside_budget" or found.report.verdict == "no_improvement"
    assert not next(g for g in candidate.gates if g.name == "latency_ms").passed
    assert found.bundle is None


def test_without_a_baseline_no_speedup_is_claimed(tmp_path: Path) -> None:
    """The only engine is not raced against itself and called faster."""
    found = finish_bundle(
        unfinished(tmp_path, baseline=False), tmp_path / "report", lambda message: None
    )
    assert found.report.verdict == "no_improvement"
    assert "No baseline was raced" in found.report.sentence
    (candidate,) = found.report.candidates
    assert candidate.points[0].speedup is None
    assert candidate.points[0].latency_ms.p50 > 0
    assert found.bundle is None


def test_a_damaged_bundle_is_refused(copy: Path, tmp_path: Path) -> None:
    (copy / "candidates" / "fp32-onnxruntime" / "model.onnx").write_bytes(b"")
    with pytest.raises(BundleError, match="changed after"):
        finish_bundle(copy, tmp_path / "report", lambda message: None)


def test_it_can_not_be_loaded_before(copy: Path) -> None:
    with pytest.raises(BundleError, match="megacompile finish"):
        megacompile.load(copy)


def test_a_backend_that_stores_no_model_says_what_to_do(copy: Path) -> None:
    from megacompile.errors import BackendError
    from megacompile.models.signature import Signature

    manifest = read_manifest(copy)
    with pytest.raises(BackendError, match="can't build an engine again") as caught:
        backend_class("onnxruntime")().rebuild(
            copy, here(), Signature.from_dict(manifest["signature"]), lambda message: None
        )
    assert "megacompile build" in str(caught.value.remedy)
