"""The user's metric: numbers by name, with what they are worth, or a reason why not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from megacompile.engines import CompiledModel
from megacompile.errors import DataError
from megacompile.measure.evaluation import evaluate
from megacompile.models import Signature
from megacompile.spec import Evaluation, TensorInput


def evaluated(folder: Path, body: str, **options: Any) -> dict[str, dict[str, Any]]:
    text = f"import numpy as np\nx = np.ones(2, np.float32)\ndef metric(run):\n    {body}\n"
    (folder / "e.py").write_text(text)
    signature = Signature({"x": TensorInput(shape=[2])}, {})
    signature = signature.with_outputs(["y"], {"tensor": "y"}, ["float32"])
    run = CompiledModel(lambda feeds: {"y": feeds["x"] * 2}, signature)
    return evaluate(Evaluation(python="e.py:metric", **options), folder, run)


def test_metrics_with_their_errors(tmp_path: Path) -> None:
    body = "y = run(x); run(x); return {'double': y[0], 'loss': [1.0, 3.0]}"
    found = evaluated(tmp_path, body, lower_is_better=["loss"])
    assert found["double"] == {
        "value": 2.0,
        "standard_error": None,
        "samples": found["double"]["samples"],
        "higher_is_better": True,
    }
    assert found["double"]["samples"] is not None
    assert found["loss"] == {
        "value": 2.0,
        "standard_error": pytest.approx(1.0),
        "samples": 2,
        "higher_is_better": False,
    }


def test_without_a_call_nothing_is_known_of_samples(tmp_path: Path) -> None:
    assert evaluated(tmp_path, "return {'accuracy': 0.5}")["accuracy"]["samples"] is None


@pytest.mark.parametrize(
    ("body", "options", "words"),
    [
        ("return {}", {}, ["returns no metrics", "got: an empty dict"]),
        ("return 0.5", {}, ["returns no metrics", "got: float"]),
        ("return {'a': np.nan}", {}, ["metric 'a' can't be used"]),
        ("return {'a': 1}", {"lower_is_better": ["b"]}, ["names 'b'", "expected: a"]),
        ("raise KeyError('label')", {}, ["e.py:4", "KeyError", "label"]),
        ("return run(x, x)", {}, ["data.evaluation 'e.py:metric'", "more inputs"]),
    ],
)
def test_what_is_no_metric(
    body: str, options: dict[str, Any], words: list[str], tmp_path: Path
) -> None:
    with pytest.raises(DataError) as caught:
        evaluated(tmp_path, body, **options)
    for word in words:
        assert word in str(caught.value)
