"""How a worker answers: loading is told, timing is not."""

from __future__ import annotations

from typing import Any

import pytest

from megacompile.measure.serving import answer_all


class Worker:
    """Doubles numbers."""

    def __init__(self, request: dict[str, Any]) -> None:
        self.factor = request["factor"]
        self.loaded = {"ready": True}

    def time(self, request: dict[str, Any]) -> dict[str, Any]:
        return {"result": self.factor * request["number"]}

    count = time


def answers(*requests: dict[str, Any]) -> list[dict[str, Any]]:
    sent: list[dict[str, Any]] = []
    answer_all(iter(requests), sent.append, Worker)
    return sent


LOAD = {"operation": "load", "factor": 2}


def test_each_request_is_a_method_of_what_was_loaded() -> None:
    found = answers(LOAD, {"operation": "count", "number": 3}, {"operation": "time", "number": 4})
    assert found == [
        {"event": "doing", "what": "loading"},
        {"event": "done", "ready": True},
        {"event": "doing", "what": "count"},
        {"event": "done", "result": 6},
        {"event": "done", "result": 8},
    ]


def test_loading_again_makes_another() -> None:
    found = answers(LOAD, {**LOAD, "factor": 5}, {"operation": "time", "number": 1})
    assert found[-1] == {"event": "done", "result": 5}


def test_nothing_is_answered_before_loading() -> None:
    with pytest.raises(AssertionError):
        answers({"operation": "time", "number": 1})
