"""What a model takes is found by running it."""

from __future__ import annotations

from pathlib import Path

import pytest

from megacompile.commands.probe import look


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("linear", {"input": ["batch", 5]}),
        ("gru", {"input": ["batch", "seq", 6]}),
        ("Grouped", {"image": ["batch", 4, "height", "width"]}),
        ("Images", {"image": ["batch", 3, 32, 32]}),
        ("Ids", {"input_ids": ["batch", "seq"], "attention_mask": ["batch", "seq"]}),
    ],
)
def test_shapes_are_found_by_running(
    name: str, shapes: dict[str, list[object]], models: Path
) -> None:
    sketch = look("python", f"models.py:{name}", models.parent)
    assert sketch["verified"]
    assert {n: e["shape"] for n, e in sketch["inputs"].items() if "shape" in e} == shapes
