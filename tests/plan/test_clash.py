"""Steps that don't fit together: which two, why, and what to write instead."""

from __future__ import annotations

from typing import Any

import pytest

from megacompile.errors import PlanError

from .toy import BF16, INT8, RECOVER, TRAIN, assert_refused, plan_of

TYING = {"share-parameters": {"mode": "identical"}}


@pytest.mark.parametrize(
    ("sections", "expected"),
    [
        (
            {"passes": [INT8, BF16], "backends": ["openvino"]},
            ["pass 'cast' can't run after 'quantize'", "put 'cast' before 'quantize'"],
        ),
        (
            {"passes": [BF16], "backends": ["onnxruntime"]},
            ["no bfloat16 MatMul", "openvino or aotinductor"],
        ),
        (
            {"passes": [INT8], "backends": ["torchscript"]},
            ["candidate 'default/torchscript'", "quantize"],
        ),
        (
            {"model": "onnx", "backends": ["torchscript"]},
            [
                "backend 'torchscript' can't take the model",
                "expected: Scripted",
                "got: Onnx",
                "use one of: onnxruntime, openvino",
            ],
        ),
        (
            {"passes": ["export", RECOVER], "backends": ["aotinductor"]},
            ["pass 'recover' can't run after 'export'", "put 'recover' before 'export'"],
        ),
        (
            {"passes": [INT8, RECOVER], "backends": ["aotinductor"]},
            ["pass 'recover' can't run after 'quantize'", "put 'recover' before 'quantize'"],
        ),
        (
            {"passes": ["training-step", RECOVER], "workload": "training", "train": TRAIN},
            ["pass 'recover' can't run after 'training-step'"],
        ),
        (
            {"passes": ["export", TYING], "backends": ["aotinductor"]},
            ["put 'share-parameters' before 'export'"],
        ),
        (
            {"passes": [{"recover": {"steps": 1, "distill": {}}}], "backends": ["aotinductor"]},
            ["cause: 'recover' needs to know its data: write batches: FILE.py:NAME\n"],
        ),
        (
            {
                "passes": [{"recover": {"steps": 1, "task": {}, "batches": "m.py:f"}}],
                "backends": ["aotinductor"],
            },
            ["needs to know the task"],
        ),
        (
            {
                "passes": [{"recover": {**RECOVER["recover"], "quantize": {}}}],
                "backends": ["openvino"],
            },
            ["openvino", "quantiz"],
        ),
        (
            {"passes": ["export"], "workload": "training", "train": TRAIN},
            ["pass 'export' can't run in workload 'training'", "leave 'export' out"],
        ),
    ],
)
def test_clashes(sections: dict[str, Any], expected: list[str]) -> None:
    assert_refused(sections, expected)


def test_a_pass_that_nothing_before_it_ended_is_left_out_or_the_backend_changed() -> None:
    sections = {"passes": ["mixed-precision"], "backends": ["onnxruntime"]}
    assert_refused(
        sections,
        [
            "pass 'mixed-precision' can't run\n",
            "works on Training, not on",
            "leave 'mixed-precision' out of this variant, or use another backend",
        ],
    )


def test_a_quantized_onnx_file_is_not_quantized_again() -> None:
    with pytest.raises(PlanError, match="needs a model that is"):
        plan_of("onnx", quantized=True, passes=[INT8], backends=["onnxruntime"])
