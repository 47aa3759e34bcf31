"""Nested outputs: apart, renamed, together again, also through JSON."""

from __future__ import annotations

import dataclasses
import json
from collections import OrderedDict, namedtuple
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from megacompile.errors import ModelError
from megacompile.models.structure import put_together, rename, take_apart

A, B = np.zeros(1), np.ones(2)
Pair = namedtuple("Pair", ["left", "right"])


@dataclasses.dataclass
class Output:
    logits: Any
    cache: Any


@pytest.mark.parametrize(
    ("value", "names"),
    [
        (A, ["output"]),
        ((A, B), ["output_0", "output_1"]),
        ([A, [B]], ["output_0", "output_1.0"]),
        ({"a": A, "b": {"c": B}}, ["a", "b.c"]),
        (Pair(A, (B,)), ["left", "right.0"]),
        (Output(A, None), ["logits"]),
        ({"a": A, "n": 3, "s": "x", "f": None}, ["a"]),
        (OrderedDict(x=A), ["x"]),
        ((), []),
    ],
)
def test_apart_and_together(value: Any, names: list[str]) -> None:
    structure, found = take_apart(value)
    assert list(found) == names
    again = put_together(json.loads(json.dumps(structure)), found.__getitem__)
    if isinstance(value, Output):
        assert type(again).__name__ == "Output"
        assert (again.logits, again.cache) == (value.logits, None)
    elif isinstance(value, Pair):
        assert type(again).__name__ == "Pair"
        assert again.left is A
        assert again.right == (B,)
    else:
        np.testing.assert_equal(again, dict(value) if isinstance(value, dict) else value)
        assert type(again) is (dict if isinstance(value, dict) else type(value))


def test_what_an_artifact_can_not_return() -> None:
    with pytest.raises(ModelError, match=r"output 'a.0' is of a kind"):
        take_apart({"a": [object()]})


def test_renaming_in_order() -> None:
    structure, found = take_apart((A, [B]))
    renamed, names = rename(structure, list(found), ["x", "y"], "outputs")
    assert renamed == {"tuple": [{"tensor": "x"}, {"list": [{"tensor": "y"}]}]}
    assert names == {"output_0": "x", "output_1.0": "y"}
    assert rename(structure, list(found), None, "outputs")[0] == structure
    with pytest.raises(ModelError, match="number of names differs"):
        rename(structure, list(found), ["x"], "outputs")


def test_renaming_by_key() -> None:
    structure, found = take_apart({"logits": A, "loss": B})
    assert rename(structure, list(found), ["logits"], "outputs")[0] == structure
    with pytest.raises(ModelError, match=r"no tensor named 'logit'(.|\n)*did you mean 'logits'"):
        rename(structure, list(found), ["logit"], "outputs")


NESTED = st.recursive(
    st.builds(lambda: np.zeros(1)) | st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text("abc", min_size=1, max_size=2), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(NESTED)
def test_any_nesting_comes_back(value: Any) -> None:
    structure, found = take_apart(value)
    np.testing.assert_equal(put_together(structure, found.__getitem__), value)
