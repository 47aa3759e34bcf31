"""The training part of a spec: what it takes, and every problem with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from .toy import TRAINING, read, shown


def test_a_spec_of_training(tmp_path: Path) -> None:
    loaded = read(TRAINING, tmp_path)
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
    spec = read(TRAINING.replace("optimizer: {adamw: {lr: 3.0e-4}}", text), tmp_path).spec
    assert spec is not None
    assert spec.train is not None
    assert spec.train.optimizer.kind == "sgd"


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (
            "accumulate: 2",
            "accumulate: 0",
            ["10:15: train.accumulate: input should be greater than"],
        ),
        ("loss: m.py:loss", "loss: loss", ["6:9: train.loss: 'loss' has no ':'"]),
        ("batches: m.py:batches", "batches: data", ["7:12: train.batches: 'data' has no ':'"]),
        ("  batch_size: 8\n", "", ["5:1: train: 'batch_size' is missing"]),
        (
            "batch_size",
            "batchsize",
            ["9:3: train.batchsize: unknown key 'batchsize'", "batch_size"],
        ),
        ("{adamw: {lr: 3.0e-4}}", "{adamw: {}, sgd: {}}", ["exactly one of adamw, adam, sgd"]),
        ("{adamw: {lr: 3.0e-4}}", "{adamw: {rl: 1}}", ["8:23:", "unknown key 'rl'"]),
        ("{adamw: {lr: 3.0e-4}}", "adagrad", ["unknown key 'adagrad'"]),
    ],
)
def test_a_problem_and_its_line(tmp_path: Path, old: str, new: str, words: list[str]) -> None:
    found = shown(read(TRAINING.replace(old, new, 1), tmp_path))
    assert any(all(word in one for word in words) for one in found), found
