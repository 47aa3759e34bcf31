"""The report as data: known keys alone, byte-equal text, and nothing of what there was not."""

from __future__ import annotations

import json

import pytest
from pydantic import ValidationError

from megacompile.report.model import Candidate, Report, Step

from . import samples


def test_the_text_comes_back_equal_byte_by_byte() -> None:
    text = samples.sample_report().to_json()
    assert Report.model_validate_json(text).to_json() == text
    assert text.endswith("}\n")
    assert json.loads(text)["schema"] == 1


def test_an_unknown_key_is_an_error() -> None:
    data = json.loads(samples.sample_report().to_json())
    data["speed"] = 3
    with pytest.raises(ValidationError, match="speed"):
        Report.model_validate(data)


def test_a_step_is_called_pass_in_the_text() -> None:
    step = Step.model_validate({"pass": "cast", "form": "Onnx", "effect": "LOSSY"})
    written = json.loads(step.model_dump_json(by_alias=True))
    assert written["pass"] == "cast"
    assert {"training", "recovery"}.isdisjoint(written), "absent where there was none"


def test_what_is_absent_of_training_does_not_hide_what_is_null() -> None:
    candidate = Candidate(name="a/b", variant="a", backend="b", status="built")
    written = json.loads(candidate.model_dump_json(by_alias=True))
    assert written["reason"] is None
    assert "training" not in written
