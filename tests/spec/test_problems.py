"""Pydantic's problems as ours: the place in the file, and the key that was meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from .toy import GOOD, assert_problems, messages, read


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("backends:", "backend:", ["7:1: unknown key 'backend'; did you mean 'backends'?"]),
        ("dtype: float32", "dtyp: float32", ["6:26: unknown key 'dtyp'; did you mean 'dtype'?"]),
    ],
)
def test_an_unknown_key_and_the_nearest(
    old: str, new: str, expected: list[str], tmp_path: Path
) -> None:
    assert_problems(old, new, expected, tmp_path)


def test_a_union_names_all_its_members(tmp_path: Path) -> None:
    found = messages(read(GOOD + "target: {threads: many}\n", tmp_path))
    assert len(found) == 1
    assert "'auto'" in found[0]
    assert "integer" in found[0]


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        ("{tuple: [{shap: [batch]}]}", "unknown key 'shap'; did you mean 'shape'?"),
        ("{dict: {k: {shape: [batch], optionl: true}}}", "did you mean 'optional'?"),
    ],
)
def test_keys_inside_nested_inputs(inputs: str, expected: str, tmp_path: Path) -> None:
    text = GOOD.replace("{shape: [batch, 3], dtype: float32}", inputs)
    assert any(expected in one for one in messages(read(text, tmp_path)))


def test_what_was_got_is_shown_once(tmp_path: Path) -> None:
    (problem,) = read(GOOD + "seed: many\n", tmp_path).problems
    assert problem.got == "'many'"
    (problem,) = read(GOOD + "target: {isa: [avx2], device: cuda}\n", tmp_path).problems
    assert problem.got is None
