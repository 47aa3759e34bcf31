"""YAML and JSON as plain data with lines: scalars of YAML 1.2, and no text breaks the reader."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from megacompile.errors import SpecError
from megacompile.spec import load_spec, load_spec_data
from megacompile.spec.positions import dotted, parse_document

from .toy import GOOD, assert_problems, read


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("no", "no"),
        ("on", "on"),
        ("y", "y"),
        ("1e-3", 1e-3),
        ("0o17", 15),
        ("017", 17),
        ("1_000", "1_000"),
        ("12:30", "12:30"),
        ("2026-01-01", "2026-01-01"),
        ("~", None),
        ("true", True),
        (".5", 0.5),
        ("0x1F", 31),
        ("+3", 3),
        ("'3'", "3"),
    ],
)
def test_yaml_1_2_scalars(written: str, value: object, tmp_path: Path) -> None:
    text = GOOD.replace(
        "x: {shape: [batch, 3], dtype: float32}",
        f"x: {{shape: [batch]}}\n  c: {{value: {written}}}",
    )
    loaded = read(text, tmp_path)
    assert loaded.spec is not None, loaded.problems
    found = loaded.spec.inputs["c"].value
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the file is empty"),
        ("# only a comment\n", "the file is empty"),
        ("- a\n- b\n", "a spec is a mapping"),
        ("name: [a\n", "not valid YAML"),
        ("a: 1\n---\nb: 2\n", "not valid YAML"),
        ("name: \x00", "not readable as text"),
        ("a: &a\n  b: *a\n", "expands without end"),
        ("name: *nothing\n", "not valid YAML"),
        ("[" * 5000, "nested too deeply"),
        ("a: " + "[" * 100 + "]" * 100, "nested beyond reason"),
        ("name: !!python/object:os.system x\n", "is not allowed here"),
        ("? [a, b]\n: 1\n", "a key must be a plain word"),
        (b"name: \xff\xfe", "UTF-8"),
        (
            "a: &a [x, x, x, x, x, x, x, x, x]\n"
            + "".join(
                f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join(['*' + chr(97 + i)] * 9)}]\n"
                for i in range(8)
            ),
            "expands without end",
        ),
    ],
)
def test_no_text_breaks_the_reader(text: str | bytes, message: str, tmp_path: Path) -> None:
    try:
        problems: list[SpecError] = read(text, tmp_path).problems
    except SpecError as error:
        problems = [error]
    assert any(message in str(problem) for problem in problems), problems


def test_a_key_that_stands_twice(tmp_path: Path) -> None:
    twice = "name: toy\nname: again"
    assert_problems("name: toy", twice, ["2:1: key 'name' stands twice"], tmp_path)


def test_a_character_that_json_escapes_as_two_is_one(tmp_path: Path) -> None:
    text = json.dumps({"name": "a", "backends": [{"\U00010000": {}}]})
    assert "\\ud800" in text
    path = tmp_path / "s.json"
    path.write_text(text)
    assert load_spec(path).document.data["backends"] == [{"\U00010000": {}}]


def test_characters_beyond_16_bits_survive_jsons_escapes() -> None:
    loaded = load_spec_data({"name": "x", "\U00010000": {"\U0001f600": "\U0001f600"}}, Path())
    assert any("unknown key '\U00010000'" in str(problem) for problem in loaded.problems)
    assert loaded.document.data["\U00010000"] == {"\U0001f600": "\U0001f600"}
    half = parse_document('{"name": "\\ud800"}', "half.json")
    assert half.data == {"name": "\ufffd"}


def test_where_a_piece_stands() -> None:
    document = parse_document("a:\n  - b: 1\n    c: [2, 3]\n", "s.yaml")
    assert document.data == {"a": [{"b": 1, "c": [2, 3]}]}
    assert document.where(("a", 0, "c", 1)) == "s.yaml:3:12: a[0].c[1]"
    assert document.where(("a", 0, "c"), key=True) == "s.yaml:3:5: a[0].c"
    assert document.where(("a", 0, "absent")) == "s.yaml:2:5: a[0].absent"
    assert document.where(()) == "s.yaml:1:1"


def test_a_path_in_words() -> None:
    assert dotted(("passes", 0, "cast", "dtype")) == "passes[0].cast.dtype"
