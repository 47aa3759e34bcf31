"""torch and ONNX Runtime on device cuda: refused with the reason here, run where a GPU is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from megacompile.errors import MegacompileError, PlanError, SpecError
from megacompile.plan.backends import Machine
from megacompile.plan.passes import Fact
from megacompile.plan.planner import make_plan
from megacompile.plan.registry import backend_class
from megacompile.spec.load import load_spec_data
from megacompile.system import gpus
from megacompile.system.gpus import local_archs
from tests.field import world
from tests.field.world import dim, normal, tensor

TORCH = ("aotinductor", "torch-compile", "torchscript")
TARGET = Machine("cuda", 2, (), ("sm_89",))
no_gpu = pytest.mark.skipif(bool(local_archs()), reason="this machine has a GPU")
needs_gpu = pytest.mark.skipif(not local_archs(), reason="this machine has no NVIDIA GPU")

MODEL = """
import torch
from torch import nn

def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4))
"""


def data(backend: str, arch: list[str] | None, **parts: Any) -> dict[str, Any]:
    target: dict[str, Any] = {"device": "cuda"} | ({"arch": arch} if arch else {})
    return world.spec(
        inputs={"x": tensor("n", 16)},
        dims={"n": dim(1, 3, 8)},
        target=target,
        backends=[backend],
        **parts,
    )


@no_gpu
@pytest.mark.parametrize("backend", [*TORCH, "onnxruntime"])
def test_unavailable_without_the_gpu(backend: str) -> None:
    plan = make_plan(load_spec_data(data(backend, ["sm_89"]), Path()), lambda _: TARGET)
    (candidate,) = plan.candidates
    assert "no NVIDIA GPU" in str(candidate.unavailable)
    assert "tensorrt" in str(candidate.remedy)


@no_gpu
def test_a_cuda_target_names_its_gpu_or_has_it() -> None:
    from megacompile.builder.main import resolve_target

    loaded = load_spec_data(data("tensorrt", None), Path())
    assert loaded.spec is not None
    with pytest.raises(SpecError, match="needs to know the GPU") as caught:
        resolve_target(loaded.spec)
    assert caught.value.where == "target.arch"


def test_another_gpu_than_the_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("megacompile.plan.backends.local_archs", lambda: ("sm_75",))
    assert TARGET.absent() == "this machine's GPU is sm_75, not sm_89"
    assert Machine("cuda", 2, (), ("sm_75", "sm_89")).absent() is None
    assert Machine("cpu", 2, ()).absent() is None


@pytest.mark.parametrize("backend", ["aotinductor", "torch-compile"])
def test_x86_int8_is_refused_on_a_gpu(backend: str) -> None:
    reason, remedy = backend_class(backend)().refusal(frozenset({Fact.QUANTIZED}), TARGET) or (
        "",
        "",
    )
    assert "x86" in reason
    assert "tensorrt" in remedy


def test_openvino_is_refused_in_the_plan() -> None:
    with pytest.raises(PlanError, match="NVIDIA GPUs"):
        make_plan(load_spec_data(data("openvino", ["sm_89"]), Path()), lambda _: TARGET)


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ({"device": "cuda", "isa": ["avx2"]}, "`isa` is for device cpu"),
        ({"device": "cpu", "arch": ["sm_89"]}, "`arch` is for device cuda"),
        ({"device": "cuda", "arch": ["sm_89", "sm_89"]}, "stands twice"),
        ({"device": "cuda", "arch": ["ada"]}, "pattern"),
        ({"device": "cuda", "arch": []}, "at least 1"),
    ],
)
def test_wrong_targets(target: dict[str, Any], says: str) -> None:
    loaded = load_spec_data({**data("tensorrt", ["sm_89"]), "target": target}, Path())
    assert says in str(loaded.problems[0])


@no_gpu
def test_no_driver_means_no_gpus() -> None:
    assert gpus.gpus() == ()
    assert gpus.process_memory_mb() is None


@needs_gpu
@pytest.mark.parametrize("backend", [*TORCH, "onnxruntime"])
def test_engines_on_the_gpu_answer_like_the_model(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine("cuda", 2, (), local_archs())
    reason = backend_class(backend)().availability(machine).reason
    if reason is not None:
        pytest.skip(reason)
    monkeypatch.setattr(world, "here", lambda: machine)
    built = world.build(tmp_path, data(backend, list(local_archs())), {"model.py": MODEL})
    built.check({"x": normal(5, 16)}, atol=1e-3, rtol=1e-2)


@no_gpu
def test_a_cuda_bundle_is_refused_with_the_reason(tmp_path: Path) -> None:
    """A finished bundle of a GPU engine, on a machine without one."""
    from megacompile.engines.loading import load_runner
    from megacompile.engines.manifest import MANIFEST, describe, seal
    from megacompile.models.signature import Signature
    from megacompile.spec.inputs import TensorInput

    signature = Signature({"x": TensorInput(shape=[2])}, {}, ("y",))
    folder = tmp_path / "net"
    folder.mkdir()
    manifest = describe("net", TARGET, signature, "f", [{}], ("torch",))
    seal(
        {
            **manifest,
            "executed": True,
            "candidate": "a/tensorrt",
            "backend": "tensorrt",
            "options": {},
            "precision": "float32",
        },
        folder,
    )
    assert (folder / MANIFEST).is_file()
    with pytest.raises(MegacompileError, match="runs on an NVIDIA GPU") as caught:
        load_runner(folder)
    assert "no NVIDIA GPU" in str(caught.value.got)
