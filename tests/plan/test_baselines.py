"""What candidates are compared with: named, usual, and the plain engine of another machine."""

from __future__ import annotations

from typing import Any

import pytest

from megacompile.plan import registry
from megacompile.plan.backends import Availability, Machine

from .toy import TRAIN, assert_refused, plan_of

CUDA = {"device": "cuda", "arch": ["sm_89"]}
GPU = Machine("cuda", 2, (), ("sm_89",))


@pytest.mark.parametrize(
    ("sections", "expected"),
    [
        (
            {"backends": ["openvino"], "benchmark": {"baselines": ["eagr"]}},
            ["unknown baseline 'eagr'", "did you mean 'eager'"],
        ),
        ({"backends": ["openvino"], "benchmark": {"baselines": []}}, ["no baseline"]),
        (
            {"backends": ["openvino"], "benchmark": {"baselines": ["eager", "eager"]}},
            ["baseline 'eager' stands twice"],
        ),
        (
            {"model": "onnx", "backends": ["openvino"], "benchmark": {"baselines": ["eager"]}},
            ["baseline 'eager' needs a PyTorch model"],
        ),
    ],
)
def test_faults(sections: dict[str, Any], expected: list[str]) -> None:
    assert_refused(sections, expected)


@pytest.mark.parametrize(
    ("model", "usual"), [("python", ("eager", "torch.compile")), ("onnx", ("onnxruntime",))]
)
def test_the_usual_ones_where_none_is_named(model: str, usual: tuple[str, ...]) -> None:
    assert plan_of(model, backends=["openvino"]).baselines == usual


def test_a_backend_as_baseline_gets_a_plan_without_passes() -> None:
    benchmark = {"baselines": ["eager", "openvino"]}
    plan = plan_of(passes=["simplify"], backends=["onnxruntime"], benchmark=benchmark)
    assert plan.baselines == ("eager", "openvino")
    (lowered,) = plan.lowered_baselines
    assert (lowered.name, lowered.variant) == ("openvino", "")
    assert "simplify" not in [step.pass_.name for step in lowered.steps]


def test_training_has_no_baseline_of_its_own() -> None:
    plan = plan_of(passes=[], workload="training", train=TRAIN)
    assert plan.baselines == ()


def test_a_tensorrt_candidate_brings_the_plain_engine() -> None:
    plan = plan_of(machine=GPU, backends=["tensorrt"], target=CUDA)
    assert plan.baselines[-1] == "tensorrt"
    assert [one.name for one in plan.lowered_baselines] == ["tensorrt"]


def test_named_baselines_are_all() -> None:
    named = plan_of(
        machine=GPU, backends=["tensorrt"], target=CUDA, benchmark={"baselines": ["eager"]}
    )
    assert named.baselines == ("eager",)


def test_a_plain_engine_that_cannot_be_built_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    absent = Availability("not installed", "install it")
    cls = registry.backend_class("tensorrt")
    monkeypatch.setattr(cls, "availability", lambda self, target: absent)
    plan = plan_of(machine=GPU, backends=["tensorrt"], target=CUDA)
    assert "tensorrt" not in plan.baselines
