"""Names and options of passes and backends: each fault with its line and the nearest word."""

from __future__ import annotations

from typing import Any

import pytest

from .toy import assert_refused, errors_of, plan_of


@pytest.mark.parametrize(
    ("sections", "expected"),
    [
        (
            {"passes": ["simplfy"], "backends": ["openvino"]},
            ["unknown pass 'simplfy'", "did you mean 'simplify'"],
        ),
        ({"backends": ["openvin"]}, ["unknown backend 'openvin'", "did you mean 'openvino'"]),
        (
            {"passes": [{"quantize": {"metod": "static"}}], "backends": ["openvino"]},
            ["unknown key 'metod'", "did you mean 'method'"],
        ),
        (
            {"passes": [{"quantize": {"method": "statik"}}], "backends": ["openvino"]},
            ["'static'", "statik"],
        ),
        ({"passes": ["nowhere.py:Mine"], "backends": ["openvino"]}, ["no such file 'nowhere.py'"]),
    ],
)
def test_faults(sections: dict[str, Any], expected: list[str]) -> None:
    assert_refused(sections, expected)


def test_faults_of_passes_and_of_the_spec_come_together() -> None:
    text = errors_of(passes=["simplfy"], backends=["openvin"], seed=-1)
    assert all(one in text for one in ("simplfy", "openvin", "seed"))


def test_a_fault_of_an_option_is_told_once_though_a_name_has_several_classes() -> None:
    text = errors_of(passes=[{"quantize": {"metod": "static"}}], backends=["openvino"])
    assert text.count("unknown key 'metod'") == 1


def test_options_reach_the_step() -> None:
    quantize = {"quantize": {"method": "dynamic", "per_channel": False}}
    plan = plan_of("onnx", passes=[quantize], backends=["onnxruntime"])
    (step,) = plan.candidates[0].steps
    assert (step.pass_.method, step.pass_.per_channel) == ("dynamic", False)
