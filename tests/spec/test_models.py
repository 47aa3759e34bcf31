"""The spec's objects: what they take, and how they are written again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megacompile.spec import Spec, load_spec, load_spec_data
from megacompile.spec.models import Item, Target

from .toy import GOOD, assert_problems, read

SPECS = sorted((Path(__file__).resolve().parents[2] / "specs").glob("*.yaml"))


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("onnx: toy.onnx", "onnx: a, python: b.py:c", ["2:8: exactly one of"]),
        ("onnx: toy.onnx", "python: toy.py", ["2:8: python: 'toy.py' has no ':'"]),
        ("name: toy", "name: ../x", ["1:7: string should match"]),
        ("[onnxruntime]", "[{a: 1}]", ["7:12: options of 'a' must be a mapping; got 1"]),
        ("[onnxruntime]", "[{a: {}, b: {}}]", ["7:12: write `name` or `name: {options}`"]),
    ],
)
def test_a_problem_and_its_line(old: str, new: str, expected: list[str], tmp_path: Path) -> None:
    assert_problems(old, new, expected, tmp_path)


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


def test_points_are_completed_by_the_typical_sizes(tmp_path: Path) -> None:
    text = GOOD.replace("max: 4}", "max: 4}\n  seq: {min: 1, typical: 9, max: 16}")
    text = text.replace("[batch, 3]", "[batch, seq]")
    spec = read(text + "benchmark: {points: [{batch: 1}, {seq: 16}]}\n", tmp_path).spec
    assert spec is not None
    assert spec.points() == [{"batch": 1, "seq": 9}, {"batch": 2, "seq": 16}]


@pytest.mark.parametrize("written", ["simplify", {"cast": {"dtype": "bfloat16"}}])
def test_an_item_is_written_as_it_was_read(written: object) -> None:
    assert Item.model_validate(written).model_dump() == written


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ({"device": "cuda", "isa": ["avx2"]}, "`isa` is for device cpu"),
        ({"arch": ["sm_89"]}, "`arch` is for device cuda"),
        ({"device": "cuda", "arch": ["sm_89", "sm_89"]}, "stands twice"),
        ({"device": "cuda", "arch": ["89"]}, "pattern"),
    ],
)
def test_a_target_fits_its_device(target: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Target.model_validate(target)
