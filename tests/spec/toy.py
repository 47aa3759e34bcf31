"""Good specs as text, and a spec file's problems with their lines."""

from __future__ import annotations

import re
from pathlib import Path

from megacompile.spec import Loaded, load_spec

GOOD = """\
name: toy
model: {onnx: toy.onnx}
dims:
  batch: {min: 1, typical: 2, max: 4}
inputs:
  x: {shape: [batch, 3], dtype: float32}
backends: [onnxruntime]
"""

TRAINING = """\
name: toy
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


def read(text: str | bytes, folder: Path, name: str = "a.yaml") -> Loaded:
    """What is loaded of a spec file with this text."""
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return load_spec(path)


def messages(loaded: Loaded) -> list[str]:
    """Problems as `LINE:COLUMN: text`, without the file and with their remedies."""
    texts = []
    for problem in loaded.problems:
        match = re.search(r":(\d+:\d+)", problem.where or "")
        assert match, problem
        remedy = f"; {problem.remedy}" if problem.remedy else ""
        texts.append(f"{match[1]}: {problem.what}{remedy}")
    return texts


def assert_problems(old: str, new: str, expected: list[str], folder: Path) -> None:
    """The good spec with `old` replaced has these problems."""
    assert old in GOOD
    found = messages(read(GOOD.replace(old, new), folder))
    for one in expected:
        assert any(one in message for message in found), found


def shown(loaded: Loaded) -> list[str]:
    """Problems as a user reads them, without the file, each on one line."""
    file = loaded.document.name + ":"
    return [str(one).removeprefix(file).replace("\n ", ";") for one in loaded.problems]
