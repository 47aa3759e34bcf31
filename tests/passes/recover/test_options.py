"""Options of `recover` that contradict each other."""

from __future__ import annotations

from typing import Any

import pytest
from megacompile_passes.recover.eager import RecoverEager
from pydantic import ValidationError


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "nothing to learn from"),
        ({"distill": {}, "epochs": 1, "steps": 1}, "exactly one of"),
        ({"distill": {"temperature": 2}}, "for loss: kl"),
        ({"distill": {"weight": 0}}, "nothing to learn"),
        ({"task": {"loss": "a.py:b", "labels": "y"}}, "not both"),
        ({"task": {"loss": "a.py:b", "label_smoothing": 0.1}}, "belongs to `labels`"),
        ({"task": {"loss": "a.py:b"}, "sampling": "loss-weighted"}, "loss per sample"),
        ({"distill": {}, "schedule": "constant", "periods": 2}, "schedule: cosine"),
        ({"distill": {}, "quantize": {}, "dropout": True}, "without dropout"),
        ({"distill": {}, "clip_activations": {"modules": ["a"]}}, "exactly one of"),
        ({"distill": {}, "validate_with": "a.py:b"}, "name one of them"),
    ],
)
def test_options_that_contradict_each_other(options: dict[str, Any], words: str) -> None:
    given = {"batches": "a.py:b", **({} if "epochs" in options else {"steps": 5}), **options}
    with pytest.raises(ValidationError, match=words):
        RecoverEager(**given)
