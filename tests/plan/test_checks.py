"""Checks over all of a plan: workloads, hooks that passes need, the target."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from megacompile.errors import PassError
from megacompile.plan.passes import Pass
from megacompile.plan.registry import pass_classes

from .toy import RECOVER, TRAIN, assert_refused, errors_of, plan_of

STATIC = {"quantize": {"method": "static"}}


@pytest.mark.parametrize(
    ("sections", "expected"),
    [
        (
            {"passes": [STATIC], "backends": ["openvino"]},
            ["'quantize' needs calibration data", "data.calibration"],
        ),
        (
            {
                "passes": [{"recover": {**RECOVER["recover"], "monitor": "accuracy"}}],
                "backends": ["aotinductor"],
            },
            ["needs evaluation data", "data.evaluation"],
        ),
    ],
)
def test_hooks_that_are_needed(sections: dict[str, Any], expected: list[str]) -> None:
    assert_refused(sections, expected)


def test_a_place_is_named_once_for_all_its_candidates() -> None:
    text = errors_of(passes=[STATIC], backends=["openvino", "onnxruntime"])
    assert text.count("needs calibration data") == 1


def test_a_hook_that_is_there_is_enough() -> None:
    hook = {"calibration": {"python": "m.py:c"}}
    assert plan_of(passes=[STATIC], backends=["openvino"], data=hook).candidates


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        (
            {"workload": "training", "train": TRAIN, "backends": ["onnxruntime"]},
            "backend 'onnxruntime' is not one of workload 'training'",
        ),
        ({"backends": ["training"]}, "backend 'training' is not one of workload 'inference'"),
    ],
)
def test_backends_of_the_other_workload(sections: dict[str, Any], words: str) -> None:
    assert_refused(sections, [words])


@pytest.mark.parametrize("item", ["mixed-precision", "compile", "distribute"])
def test_training_passes_need_a_training_backend(item: str) -> None:
    assert_refused({"backends": ["onnxruntime"], "passes": [item]}, [f"'{item}'", "Training"])


def test_what_the_target_cannot_do_is_told_at_the_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, tuple[str, ...]]] = []

    def unsupported(self: Pass[Any, Any], device: str, isa: Sequence[str]) -> PassError:
        asked.append((device, tuple(isa)))
        return PassError(what="no such instruction here", remedy="leave it out")

    for cls in pass_classes("simplify", Path()):
        monkeypatch.setattr(cls, "unsupported", unsupported)
    text = errors_of(passes=["simplify"], backends=["onnxruntime", "openvino"])
    assert text.count("no such instruction here") == 1
    assert "passes[0]" in text
    assert "to do: leave it out" in text
    assert set(asked) == {("cpu", ("avx2", "avx512_vnni"))}
