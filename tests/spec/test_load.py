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
from megacompile.spec import Spec, load_spec

from .toy import GOOD, assert_problems, messages, read

MACHINE = Machine("cpu", 2, ("avx2",))


def test_a_good_spec(tmp_path: Path) -> None:
    loaded = read(GOOD, tmp_path)
    assert loaded.problems == []
    assert loaded.spec is not None
    assert loaded.base == tmp_path
    assert loaded.spec.points() == [{"batch": 2}]
    assert loaded.spec.tensors()["x"].shape == ["batch", 3]


def test_a_key_that_is_missing(tmp_path: Path) -> None:
    assert_problems("name: toy\n", "", ["'name' is missing"], tmp_path)


def test_all_problems_at_once_in_order(tmp_path: Path) -> None:
    text = GOOD.replace("typical: 2", "typical: 9").replace("batch, 3", "bach, 3")
    text += "nam: x\nbudget: {cosine: 2}\nseed: -1\n"
    found = messages(read(text, tmp_path))
    lines = [int(m.split(":")[0]) for m in found]
    assert lines == sorted(lines)
    assert {4, 6, 8, 9, 10} <= set(lines), found


def test_json_is_a_spec_too(tmp_path: Path) -> None:
    spec = read(GOOD, tmp_path).spec
    assert spec is not None
    text = json.dumps(spec.model_dump(mode="json", by_alias=True, exclude_unset=True), indent=1)
    assert read(text, tmp_path, "a.json").spec == spec


def test_a_missing_file_names_its_neighbour(tmp_path: Path) -> None:
    (tmp_path / "minilm.yaml").write_text(GOOD)
    with pytest.raises(SpecError, match=r"no such spec file\n.*did you mean 'minilm.yaml'"):
        load_spec(tmp_path / "minilmm.yaml")
    with pytest.raises(SpecError, match="can't be read"):
        load_spec(tmp_path)


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


@given(cut=st.integers(0, len(GOOD)), more=st.text(max_size=6))
@ANY
def test_a_damaged_spec_gives_a_line(cut: int, more: str, tmp_path: Path) -> None:
    outcome(GOOD[:cut] + more + GOOD[cut + 3 :], tmp_path)
