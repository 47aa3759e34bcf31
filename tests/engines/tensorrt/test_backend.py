"""What the backend plans, refuses and writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from megacompile.engines.tensorrt import flavours
from megacompile.engines.tensorrt.backend import TensorRT
from megacompile.errors import PlanError
from megacompile.plan.backends import Machine
from megacompile.plan.passes import Fact
from megacompile.plan.planner import make_plan
from megacompile.spec.load import load_spec_data
from megacompile.system.gpus import local_archs
from tests.engines.tensorrt.networks import (
    TARGET,
    clash,
    matmul,
    needs_gpu,
    needs_rtx,
    plan_of,
)
from tests.field import world
from tests.field.world import tensor

pytestmark = needs_rtx


def test_one_engine_per_architecture_beside_the_onnx_file(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    said: list[str] = []
    lowered = TensorRT().compile(matmul(tmp_path), TARGET, frozenset(), out, said.append)
    names = {file.name for file in out.iterdir()}
    assert {"sm_89.engine", "sm_120.engine", "model.onnx", "tensorrt.json"} <= names
    assert (out / "sm_89.engine").read_bytes() != (out / "sm_120.engine").read_bytes()
    record = json.loads((out / "tensorrt.json").read_text())
    assert record["archs"] == ["sm_89", "sm_120"]
    assert "tensorrt-rtx" in lowered.notes[0]
    assert any("sm_120" in line for line in said)


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ({"target": {"device": "cuda", "arch": ["sm_90"]}}, "no kernels for sm_90"),
        ({"target": {"device": "cuda", "arch": ["sm_75"]}}, "cast: {dtype: float16}"),
        (
            {
                "target": {"device": "cuda", "arch": ["sm_75"]},
                "passes": [{"cast": {"dtype": "bfloat16"}}],
            },
            "no bfloat16 matrix product",
        ),
        (
            {"passes": [{"quantize": {"method": "static", "symmetric": False}}]},
            "tensorrt refuses zero points",
        ),
        ({"passes": [{"quantize": {"method": "dynamic"}}]}, "method: static"),
        ({"backends": [{"tensorrt": {"timing_cache": True}}]}, "leave timing_cache out"),
        (
            {"backends": [{"tensorrt": {"flavour": "tensorrt", "runtime": "onnxruntime"}}]},
            "use flavour tensorrt-rtx",
        ),
    ],
)
def test_refused_in_the_plan(parts: dict[str, Any], says: str) -> None:
    assert says in clash(data={"calibration": {"python": "m.py:s"}}, **parts)


def test_a_cpu_target_is_refused() -> None:
    data = world.spec(inputs={"x": tensor(2)}, backends=["tensorrt"])
    with pytest.raises(PlanError, match="device: cuda"):
        make_plan(load_spec_data(data, Path()), lambda _: Machine("cpu", 2, ()))


def test_the_plain_engine_is_a_baseline_where_the_spec_names_none() -> None:
    plan = plan_of(benchmark={})
    assert plan.baselines == ("eager", "torch.compile", "tensorrt")
    assert [one.backend.name for one in plan.lowered_baselines] == ["tensorrt"]
    turing = plan_of(
        benchmark={},
        target={"device": "cuda", "arch": ["sm_75"]},
        passes=[{"cast": {"dtype": "float16"}}],
    )
    assert turing.baselines == ("eager", "torch.compile")  # float32 is refused there
    assert plan_of(benchmark={"baselines": ["eager"]}).lowered_baselines == ()


def test_float16_is_planned_for_turing() -> None:
    plan = plan_of(
        target={"device": "cuda", "arch": ["sm_75"]}, passes=[{"cast": {"dtype": "float16"}}]
    )
    assert Fact.FLOAT16 in plan.candidates[0].facts


def test_the_other_flavour_needs_its_gpu() -> None:
    (candidate,) = plan_of(backends=[{"tensorrt": {"flavour": "tensorrt"}}]).candidates
    if local_archs():
        pytest.skip("this machine has a GPU")
    assert candidate.unavailable is not None
    assert candidate.remedy is not None
    assert "pip install" in candidate.remedy


@needs_gpu
def test_an_engine_answers_like_its_model(tmp_path: Path) -> None:
    form = matmul(tmp_path)
    machine = Machine("cuda", 2, (), local_archs())
    if not set(local_archs()) <= set(flavours.RTX.archs or ()):
        pytest.skip(f"TensorRT-RTX has no kernels for {', '.join(local_archs())}")
    out = tmp_path / "out"
    out.mkdir()
    TensorRT().compile(form, machine, frozenset(), out)
    feeds = {"x": np.random.default_rng(1).standard_normal((5, 8)).astype(np.float32)}
    for runtime in ("engine", "onnxruntime"):
        runner = TensorRT(runtime=runtime).load(out, machine, form.signature)
        np.testing.assert_allclose(runner.run(feeds)["y"], form.run(feeds)["y"], rtol=1e-2)
        runner.prepare(feeds)()
        runner.close()
