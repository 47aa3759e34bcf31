"""Reading specs: every problem has its line, all are found together, and nothing else is raised."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from megacompile.errors import MegacompileError, SpecError
from megacompile.plan.backends import Machine
from megacompile.plan.planner import make_plan
from megacompile.spec import Loaded, Spec, load_spec, load_spec_data
from megacompile.spec.positions import parse_document

SPECS = sorted((Path(__file__).resolve().parents[2] / "specs").glob("*.yaml"))
MACHINE = Machine("cpu", 2, ("avx2",))

GOOD = """\
name: toy
model: {onnx: toy.onnx}
dims:
  batch: {min: 1, typical: 2, max: 4}
inputs:
  x: {shape: [batch, 3], dtype: float32}
backends: [onnxruntime]
"""


def read(text: str | bytes, folder: Path, name: str = "a.yaml") -> Loaded:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return load_spec(path)


def messages(loaded: Loaded) -> list[str]:
    """Problems as `LINE:COLUMN: text`, without the file and with their remedies."""
    texts = []
    for problem in loaded.problems:
        match = re.search(r":(\d+:\d+)", problem.where or "")
        assert match, problem
        texts.append(
            f"{match[1]}: {problem.what}" + (f"; {problem.remedy}" if problem.remedy else "")
        )
    return texts


def test_a_good_spec(tmp_path: Path) -> None:
    loaded = read(GOOD, tmp_path)
    assert loaded.problems == []
    assert loaded.spec is not None
    assert loaded.base == tmp_path
    assert loaded.spec.points() == [{"batch": 2}]
    assert loaded.spec.tensors()["x"].shape == ["batch", 3]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("backends:", "backend:", ["7:1: unknown key 'backend'; did you mean 'backends'?"]),
        ("dtype: float32", "dtyp: float32", ["6:26: unknown key 'dtyp'; did you mean 'dtype'?"]),
        ("typical: 2", "typical: 9", ["4:10: min <= typical <= max is needed; got 1, 9, 4"]),
        (
            "batch, 3]",
            "bach, 3]",
            [
                "6:15: dim 'bach' is not declared; did you mean 'batch'?",
                "4:3: dim 'batch' is declared but no input uses it; did you mean 'bach'?",
            ],
        ),
        ("onnx: toy.onnx", "onnx: a, python: b.py:c", ["2:8: exactly one of"]),
        ("onnx: toy.onnx", "python: toy.py", ["2:8: python: 'toy.py' has no ':'"]),
        ("name: toy\n", "", ["'name' is missing"]),
        ("name: toy", "name: ../x", ["1:7: string should match"]),
        ("name: toy", "name: toy\nname: again", ["2:1: key 'name' stands twice"]),
        (
            "name: toy",
            "name: toy\nworkload: training",
            ["2:11: workload 'training' needs to know how to train"],
        ),
        ("float32}", "float32, range: [2, 1]}", ["6:6: range needs low <= high"]),
        ("float32}", "int8, range: [0, 300]}", ["range of input 'x' is not one of int8 values"]),
        ("float32}", "float32, optional: true}", ["6:6: an optional input needs `default`"]),
        ("float32}", "flot32}", ["6:33: input should be 'float64', 'float32'"]),
        ("[onnxruntime]", "[]", ["no backend is named"]),
        ("[onnxruntime]", "[{a: 1}]", ["7:12: options of 'a' must be a mapping; got 1"]),
        ("[onnxruntime]", "[{a: {}, b: {}}]", ["7:12: write `name` or `name: {options}`"]),
        ("backends:", "budget: {metric_drop: 0.1}\nbackends:", ["7:10: budget.metric_drop needs"]),
        ("backends:", "benchmark: {points: [{bath: 1}]}\nbackends:", ["7:23: unknown dim 'bath'"]),
        (
            "backends:",
            "benchmark: {points: [{batch: 9}]}\nbackends:",
            ["dim 'batch' is outside its declared range"],
        ),
        ("batch:", "ba-tch:", ["dim name 'ba-tch' is not a plain identifier"]),
        ("min: 1", "min: 0", ["greater than or equal to 1"]),
        ("x: {shape: [batch, 3], dtype: float32}", "x: {value: 1}", ["no input is a tensor"]),
        (
            "x: {shape: [batch, 3], dtype: float32}",
            "x: {tuple: [{shape: [batch, -1]}]}",
            ["a size is 0 or more"],
        ),
    ],
)
def test_a_problem_and_its_line(old: str, new: str, expected: list[str], tmp_path: Path) -> None:
    assert old in GOOD
    found = messages(read(GOOD.replace(old, new), tmp_path))
    for one in expected:
        assert any(one in message for message in found), found


def test_all_problems_at_once_in_order(tmp_path: Path) -> None:
    text = GOOD.replace("typical: 2", "typical: 9").replace("batch, 3", "bach, 3")
    text += "nam: x\nbudget: {cosine: 2}\nseed: -1\n"
    found = messages(read(text, tmp_path))
    lines = [int(m.split(":")[0]) for m in found]
    assert lines == sorted(lines)
    assert {4, 6, 8, 9, 10} <= set(lines), found


def test_a_union_names_all_its_members(tmp_path: Path) -> None:
    found = messages(read(GOOD + "target: {threads: many}\n", tmp_path))
    assert len(found) == 1
    assert "'auto'" in found[0]
    assert "integer" in found[0]


def test_json_is_a_spec_too(tmp_path: Path) -> None:
    spec = read(GOOD, tmp_path).spec
    assert spec is not None
    text = json.dumps(spec.model_dump(mode="json", by_alias=True, exclude_unset=True), indent=1)
    assert read(text, tmp_path, "a.json").spec == spec


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


def test_a_missing_file_names_its_neighbour(tmp_path: Path) -> None:
    (tmp_path / "minilm.yaml").write_text(GOOD)
    with pytest.raises(SpecError, match=r"no such spec file\n.*did you mean 'minilm.yaml'"):
        load_spec(tmp_path / "minilmm.yaml")
    with pytest.raises(SpecError, match="can't be read"):
        load_spec(tmp_path)


@pytest.mark.parametrize("path", SPECS, ids=lambda p: p.stem)
def test_specs_round_trip(path: Path) -> None:
    spec = load_spec(path).spec
    assert spec is not None
    data = spec.model_dump(mode="json", by_alias=True, exclude_unset=True)
    again = load_spec_data(json.loads(json.dumps(data)), path.parent)
    assert again.problems == []
    assert again.spec == spec
    assert Spec(**data) == spec


NAMES = st.sampled_from(["batch", "seq", "x", "y_2", "mask"])
SIZES = st.tuples(*[st.integers(1, 9)] * 3).map(sorted)


@st.composite
def valid(draw: st.DrawFn) -> dict[str, object]:
    """A spec that is valid by construction."""
    dims = draw(st.dictionaries(NAMES, SIZES, max_size=3))
    shape = [*dims, *draw(st.lists(st.integers(0, 9), max_size=2))]
    tensor = {"shape": shape, "dtype": draw(st.sampled_from(["float32", "int64", "bool"]))}
    kinds: list[dict[str, object]] = [tensor, {"tuple": [tensor]}, {"dict": {"k": tensor}}]
    return {
        "name": draw(st.from_regex(r"\A[a-z][a-z0-9._-]{0,20}\Z")),
        "model": {"python": "m.py:f"},
        "dims": {n: {"min": a, "typical": b, "max": c} for n, (a, b, c) in dims.items()},
        "inputs": {
            "first": draw(st.sampled_from(kinds)),
            "flag": {"value": draw(st.booleans() | st.integers() | st.text(max_size=5))},
        },
        "passes": draw(st.lists(st.sampled_from(["a", {"b": {"c": 1}}]), max_size=2)),
        "backends": ["onnxruntime"],
        "seed": draw(st.integers(0, 2**31)),
    }


@given(valid())
@settings(max_examples=60, deadline=None)
def test_valid_specs_round_trip(data: dict[str, object]) -> None:
    loaded = load_spec_data(data, Path())
    assert loaded.problems == []
    assert loaded.spec is not None
    written = loaded.spec.model_dump(mode="json", by_alias=True, exclude_unset=True)
    assert load_spec_data(written, Path()).spec == loaded.spec


def outcome(text: str, folder: Path) -> None:
    """A plan, or errors of ours that name a line."""
    path = folder / "a.yaml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    try:
        make_plan(load_spec(path), lambda _: MACHINE)
    except MegacompileError as error:
        for one in getattr(error, "problems", [error]):
            # A file that is no UTF-8 has no lines to name.
            assert re.search(r":\d+:\d+", str(one)) or "UTF-8" in str(one), one


ANY = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
DATA = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=10,
)


@given(text=st.text(max_size=200) | st.text("{}[]:,-&*!|>'\"# \n\tab1?%@`", max_size=80))
@ANY
def test_any_text_gives_a_line(text: str, tmp_path: Path) -> None:
    outcome(text, tmp_path)


@given(key=st.sampled_from(sorted(Spec.model_fields)), value=DATA)
@ANY
def test_any_value_of_a_key_gives_a_line(key: str, value: object, tmp_path: Path) -> None:
    spec = read(GOOD, tmp_path).spec
    assert spec is not None
    data = spec.model_dump(mode="json", by_alias=True, exclude_unset=True)
    outcome(json.dumps({**data, key: value}, indent=1), tmp_path)


def test_a_character_that_json_escapes_as_two_is_one(tmp_path: Path) -> None:
    text = json.dumps({"name": "a", "backends": [{"\U00010000": {}}]})
    assert "\\ud800" in text
    path = tmp_path / "s.json"
    path.write_text(text)
    assert load_spec(path).document.data["backends"] == [{"\U00010000": {}}]


@given(cut=st.integers(0, len(GOOD)), more=st.text(max_size=6))
@ANY
def test_a_damaged_spec_gives_a_line(cut: int, more: str, tmp_path: Path) -> None:
    outcome(GOOD[:cut] + more + GOOD[cut + 3 :], tmp_path)


def test_characters_beyond_16_bits_survive_jsons_escapes() -> None:
    loaded = load_spec_data({"name": "x", "\U00010000": {"\U0001f600": "\U0001f600"}}, Path())
    assert any("unknown key '\U00010000'" in str(problem) for problem in loaded.problems)
    assert loaded.document.data["\U00010000"] == {"\U0001f600": "\U0001f600"}
    half = parse_document('{"name": "\\ud800"}', "half.json")
    assert half.data == {"name": "\ufffd"}
