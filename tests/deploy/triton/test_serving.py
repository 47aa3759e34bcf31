"""What runs inside the server's Python backend."""

from __future__ import annotations

from typing import Any

import numpy as np

from megacompile.deploy.triton.serving import answer


def test_requests_are_joined_by_shape_and_split_again() -> None:
    seen: list[tuple[int, ...]] = []

    def run(feeds: Any) -> Any:
        seen.append(feeds["x"].shape)
        if feeds["x"].shape[1] == 3:
            raise ValueError("three")
        return {"y": feeds["x"] * 2}

    requests = [
        {"x": np.full((rows, width), index, np.float32)}
        for index, (rows, width) in enumerate([(1, 4), (2, 4), (1, 3), (1, 5), (1, 3)])
    ]
    answers = answer(run, requests, batched=True)
    assert seen == [(3, 4), (2, 3), (1, 3), (1, 3), (1, 5)]
    for index in (0, 1, 3):
        one = answers[index]
        assert isinstance(one, dict)
        np.testing.assert_array_equal(one["y"], 2 * requests[index]["x"])
    assert [str(answers[index]) for index in (2, 4)] == ["ValueError: three"] * 2
