"""The training part of a spec: what it takes, and every problem with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from megacompile.spec import load_spec

SPEC = """name: toy
model: {python: m.py:build}
inputs: {x: {shape: [4]}}
workload: training
train:
  loss: m.py:loss
  batches: m.py:batches
  optimizer: {adamw: {lr: 3.0e-4}}
  batch_size: 8
  accumulate: 2
budget: {peak_memory: 0.5}
"""


def problems(tmp_path: Path, text: str) -> list[str]:
    path = tmp_path / "s.yaml"
    path.write_text(text)
    return [
        str(one).removeprefix(str(path) + ":").replace("\n ", ";")
        for one in load_spec(path).problems
    ]


def test_a_spec_of_training(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(SPEC)
    loaded = load_spec(path)
    assert loaded.problems == []
    assert loaded.spec is not None
    train = loaded.spec.train
    assert train is not None
    assert train.micro_batch == 4
    assert train.optimizer.kind == "adamw"
    assert train.optimizer.options.lr == 3e-4
    again = type(train).model_validate(train.model_dump(mode="json", exclude_unset=True))
    assert again == train


@pytest.mark.parametrize("text", ["optimizer: sgd", "optimizer: {sgd: }", "optimizer: {sgd: {}}"])
def test_an_optimizer_by_its_name(tmp_path: Path, text: str) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(SPEC.replace("optimizer: {adamw: {lr: 3.0e-4}}", text))
    spec = load_spec(path).spec
    assert spec is not None
    assert spec.train is not None
    assert spec.train.optimizer.kind == "sgd"


CASES = [
    (
        "accumulate: 2",
        "accumulate: 3",
        ["10:15: train.accumulate: the batch does not divide by the accumulation", "use 2"],
    ),
    ("accumulate: 2", "accumulate: 0", ["10:15: train.accumulate: input should be greater than"]),
    ("loss: m.py:loss", "loss: loss", ["6:9: train.loss: 'loss' has no ':'"]),
    ("batches: m.py:batches", "batches: data", ["7:12: train.batches: 'data' has no ':'"]),
    ("  batch_size: 8\n", "", ["5:1: train: 'batch_size' is missing"]),
    ("batch_size", "batchsize", ["9:3: train.batchsize: unknown key 'batchsize'", "batch_size"]),
    ("{adamw: {lr: 3.0e-4}}", "{adamw: {}, sgd: {}}", ["exactly one of adamw, adam, sgd"]),
    ("{adamw: {lr: 3.0e-4}}", "{adamw: {rl: 1}}", ["8:23:", "unknown key 'rl'"]),
    ("{adamw: {lr: 3.0e-4}}", "adagrad", ["unknown key 'adagrad'"]),
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
]


@pytest.mark.parametrize(("old", "new", "words"), CASES)
def test_a_problem_and_its_line(tmp_path: Path, old: str, new: str, words: list[str]) -> None:
    found = problems(tmp_path, SPEC.replace(old, new, 1))
    assert any(all(word in one for word in words) for one in found), found


def test_training_limits_are_not_for_inference(tmp_path: Path) -> None:
    text = SPEC[: SPEC.index("workload")] + "backends: [onnxruntime]\nbudget: {step_time: 1.2}\n"
    [found] = problems(tmp_path, text)
    assert "5:10: budget.step_time:" in found
    assert "belongs to workload 'training'" in found


@pytest.mark.parametrize(
    ("workload", "backend", "words"),
    [
        ("training", "onnxruntime", "backend 'onnxruntime' is not one of workload 'training'"),
        ("inference", "training", "backend 'training' is not one of workload 'inference'"),
    ],
)
def test_backends_of_the_other_workload(
    tmp_path: Path, workload: str, backend: str, words: str
) -> None:
    from megacompile.errors import MegacompileError
    from megacompile.plan.backends import Machine
    from megacompile.plan.planner import make_plan

    text = SPEC if workload == "training" else SPEC[: SPEC.index("workload")]
    path = tmp_path / "s.yaml"
    path.write_text(text + f"backends: [{backend}]\n")
    with pytest.raises(MegacompileError) as caught:
        make_plan(load_spec(path), lambda _: Machine("cpu", 2, ()))
    assert words in str(caught.value)


@pytest.mark.parametrize("item", ["mixed-precision", "compile", "distribute"])
def test_training_passes_need_a_training_backend(tmp_path: Path, item: str) -> None:
    from megacompile.errors import MegacompileError
    from megacompile.plan.backends import Machine
    from megacompile.plan.planner import make_plan

    path = tmp_path / "s.yaml"
    text = SPEC[: SPEC.index("workload")] + f"backends: [onnxruntime]\npasses: [{item}]\n"
    path.write_text(text)
    with pytest.raises(MegacompileError) as caught:
        make_plan(load_spec(path), lambda _: Machine("cpu", 2, ()))
    assert f"'{item}'" in str(caught.value)
    assert "Training" in str(caught.value)
