"""Problems between the sections of a spec."""

from __future__ import annotations

from pathlib import Path

import pytest

from .toy import GOOD, assert_problems, messages, read


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (
            "batch, 3]",
            "bach, 3]",
            [
                "6:15: dim 'bach' is not declared; did you mean 'batch'?",
                "4:3: dim 'batch' is declared but no input uses it; did you mean 'bach'?",
            ],
        ),
        ("float32}", "int8, range: [0, 300]}", ["range of input 'x' is not one of int8 values"]),
        ("[onnxruntime]", "[]", ["no backend is named"]),
        ("backends:", "budget: {metric_drop: 0.1}\nbackends:", ["7:10: budget.metric_drop needs"]),
        ("backends:", "benchmark: {points: [{bath: 1}]}\nbackends:", ["7:23: unknown dim 'bath'"]),
        (
            "backends:",
            "benchmark: {points: [{batch: 9}]}\nbackends:",
            ["dim 'batch' is outside its declared range"],
        ),
        ("batch:", "ba-tch:", ["dim name 'ba-tch' is not a plain identifier"]),
        ("x: {shape: [batch, 3], dtype: float32}", "x: {value: 1}", ["no input is a tensor"]),
    ],
)
def test_a_problem_and_its_line(old: str, new: str, expected: list[str], tmp_path: Path) -> None:
    assert_problems(old, new, expected, tmp_path)


def test_an_input_name_stands_for_one_tensor(tmp_path: Path) -> None:
    nested = "x: {tuple: [{shape: [batch]}]}\n  x.0: {shape: [2]}"
    text = GOOD.replace("x: {shape: [batch, 3], dtype: float32}", nested)
    assert "input name 'x.0' stands for two tensors" in " ".join(messages(read(text, tmp_path)))


@pytest.mark.parametrize("wanted", ["max_batch_size: 8", "preferred_batch_sizes: [2, 8]"])
def test_a_served_batch_that_no_input_takes(wanted: str, tmp_path: Path) -> None:
    found = messages(read(GOOD + f"deploy: {{triton: {{{wanted}}}}}\n", tmp_path))
    assert len(found) == 1
    assert f"{wanted.partition(':')[0]} 8 is beyond what input 'x' takes" in found[0]


def test_a_variant_needs_a_backend_of_its_own_or_of_the_spec(tmp_path: Path) -> None:
    text = GOOD.replace("backends: [onnxruntime]", "variants: {a: {backends: [openvino]}, b: {}}")
    (found,) = messages(read(text, tmp_path))
    assert "variant 'b' names no backend" in found
