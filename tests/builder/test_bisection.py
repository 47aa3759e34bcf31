"""A broken engine whose steps were not looked at: the guilty step is found."""

from __future__ import annotations

from pathlib import Path

import pytest

import megacompile
from tests.builder.inference_world import options, write


@pytest.mark.parametrize("verify_each", [True, False])
def test_a_pass_that_lies_is_named(tmp_path: Path, verify_each: bool) -> None:
    spec = write(tmp_path, {"bad": ["own.py:Same", "own.py:Lie", "simplify"]})
    result = megacompile.build(spec, options(tmp_path, verify_each=verify_each))
    (candidate,) = result.report.candidates
    assert candidate.status == "failed"
    assert "'lie' broke its promise" in str(candidate.reason)
    assert ("bisection" in str(candidate.reason)) == (not verify_each)
    assert result.exit_code == 4
    assert result.bundle is None
