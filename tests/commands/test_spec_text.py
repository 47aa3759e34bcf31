"""The text of a first spec is YAML that says what was found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from megacompile.commands.spec_text import _flow, render

SKETCH: dict[str, Any] = {
    "inputs": {
        "ids": {"shape": ["batch", "seq"], "dtype": "int64", "range": [0.0, 49.0]},
        "scale": {"value": 2.0},
    },
    "dims": {"batch": [1, 4, 16], "seq": [1, 32, 128]},
    "optional": ["bias"],
    "unknown": {"ids": "the range of its values"},
    "notes": ["a note"],
    "verified": True,
}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("model.py:build", "model.py:build"),
        ("true", '"true"'),
        ("Null", '"Null"'),
        ("a b", '"a b"'),
        ("1x", '"1x"'),
        (2.0, "2"),
        (0.25, "0.25"),
        (True, "true"),
        (None, "null"),
        ({"shape": ["batch", 3], "range": (0, 1)}, "{shape: [batch, 3], range: [0, 1]}"),
    ],
)
def test_values_are_quoted_only_where_they_must_be(value: Any, text: str) -> None:
    assert _flow(value) == text
    read = yaml.safe_load(text)
    assert read == (value if not isinstance(value, dict) else {**value, "range": [0, 1]})


def test_what_was_found_stands_there(tmp_path: Path) -> None:
    text = render(SKETCH, "net", "python", "model.py:build", tmp_path)
    data = yaml.safe_load(text)
    assert data["name"] == "net"
    assert data["model"] == {"python": "model.py:build"}
    assert data["dims"]["seq"] == {"min": 1, "typical": 32, "max": 128}
    assert data["inputs"] == SKETCH["inputs"]
    assert data["benchmark"] == {
        "baselines": ["eager", "torch.compile"],
        "points": [{"batch": 4, "seq": 32}],
    }
    assert "onnxruntime" in data["variants"]["fp32"]["backends"]
    lines = text.splitlines()
    assert "# a note" in lines
    sizes = "# Sizes that may differ from call to call. The model runs at these; write yours."
    assert sizes in lines
    (waiting,) = [line for line in lines[1:] if "FILL IN" in line]
    assert waiting.startswith("  ids: ")
    assert waiting.endswith("# FILL IN: the range of its values")
    assert any(line.startswith("  # bias: {shape:") for line in lines)


def test_sizes_that_were_not_found_wait_for_their_author(tmp_path: Path) -> None:
    sketch = {**SKETCH, "verified": False, "unknown": {}}
    lines = render(sketch, "net", "python", "model.py:build", tmp_path).splitlines()
    assert "# Sizes that may differ from call to call." in lines
    waiting = [line.split(":")[0].strip() for line in lines[1:] if "FILL IN" in line]
    assert waiting == ["batch", "seq"]


@pytest.mark.parametrize(
    ("kind", "baselines"), [("onnx", ["onnxruntime"]), ("torchscript", ["eager"])]
)
def test_baselines_by_kind(kind: str, baselines: list[str], tmp_path: Path) -> None:
    data = yaml.safe_load(render(SKETCH, "net", kind, "model.x", tmp_path))
    assert data["benchmark"]["baselines"] == baselines
