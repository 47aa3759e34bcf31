"""What a workload needs of a spec, and what belongs to the other one."""

from __future__ import annotations

from pathlib import Path

import pytest

from .toy import TRAINING, assert_problems, read, shown


def test_training_needs_to_know_how(tmp_path: Path) -> None:
    training = "name: toy\nworkload: training"
    expected = ["2:11: workload 'training' needs to know how to train"]
    assert_problems("name: toy", training, expected, tmp_path)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (
            "accumulate: 2",
            "accumulate: 3",
            ["10:15: train.accumulate: the batch does not divide by the accumulation", "use 2"],
        ),
        ("workload: training\n", "", ["4:1: train:", "belongs to workload 'training'"]),
        (
            "peak_memory: 0.5",
            "cosine: 0.5",
            ["11:10: budget.cosine:", "belongs to workload 'inference'"],
        ),
        (
            "peak_memory: 0.5",
            "speedup: 2",
            ["11:10: budget.speedup:", "belongs to workload 'inference'"],
        ),
        (
            "python: m.py:build",
            "onnx: m.onnx",
            ["2:9: model.onnx: only a model built in Python can be trained"],
        ),
        (
            "budget:",
            "benchmark: {baselines: [eager]}\nbudget:",
            ["11:13: benchmark.baselines:", "has no meaning in training"],
        ),
    ],
)
def test_a_problem_and_its_line(tmp_path: Path, old: str, new: str, words: list[str]) -> None:
    found = shown(read(TRAINING.replace(old, new, 1), tmp_path))
    assert any(all(word in one for word in words) for one in found), found


def test_training_limits_are_not_for_inference(tmp_path: Path) -> None:
    text = TRAINING[: TRAINING.index("workload")]
    text += "backends: [onnxruntime]\nbudget: {step_time: 1.2}\n"
    [found] = shown(read(text, tmp_path))
    assert "5:10: budget.step_time:" in found
    assert "belongs to workload 'training'" in found


def test_a_trained_model_is_served_by_a_spec_of_its_own(tmp_path: Path) -> None:
    (found,) = shown(read(TRAINING + "deploy: {triton: {}}\n", tmp_path))
    assert "12:1: deploy: `deploy` serves inference engines" in found
