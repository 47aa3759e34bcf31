"""Errors: one text, a journey as plain data, several at once, and the nearest word."""

from __future__ import annotations

import json

import pytest

from megacompile.errors import (
    LEAVES,
    BackendError,
    BudgetError,
    MegacompileError,
    PlanError,
    Problems,
    SpecError,
    did_you_mean,
    from_dict,
    raise_all,
)

FULL = BackendError(
    what="no such operator",
    where="node 3",
    expected="Gelu",
    got="Gelv",
    cause="a typo",
    remedy="mend it",
    audience="pass author",
)


def test_an_error_says_all_it_knows_and_no_more() -> None:
    assert str(FULL) == (
        "node 3: no such operator\n  expected: Gelu\n  got: Gelv\n  cause: a typo\n"
        "  to do: mend it\n  for: the pass author"
    )
    assert str(SpecError(what="empty")) == "empty"


@pytest.mark.parametrize("leaf", LEAVES.values(), ids=LEAVES)
def test_every_leaf_travels_as_plain_data(leaf: type[MegacompileError]) -> None:
    error = leaf(**FULL.fields())
    again = from_dict(json.loads(json.dumps(error.to_dict())))
    assert type(again) is leaf
    assert again == error


def test_every_leaf_is_known_by_its_name() -> None:
    def below(base: type[MegacompileError]) -> set[type[MegacompileError]]:
        own = {one for one in base.__subclasses__() if one.__module__ == "megacompile.errors"}
        return own.union(*(below(one) for one in own))

    assert set(LEAVES.values()) == below(MegacompileError) - {Problems} | {MegacompileError}


def test_exit_codes_tell_the_spec_from_the_build_from_the_budget() -> None:
    assert (PlanError.exit_code, BackendError.exit_code, BudgetError.exit_code) == (2, 4, 3)


def test_raising_none_one_and_several() -> None:
    one, other = SpecError(what="first"), PlanError(what="second")
    raise_all([])
    with pytest.raises(SpecError) as single:
        raise_all([one])
    assert single.value is one
    with pytest.raises(Problems, match="first\nsecond") as several:
        raise_all([one, other])
    assert several.value.problems == (one, other)


def test_the_nearest_word_or_all_of_a_few() -> None:
    known = ["quantize", "cast", "simplify"]
    assert did_you_mean("quantise", known) == "did you mean 'quantize'?"
    assert did_you_mean("xyz", known) == "known: cast, quantize, simplify"
    assert did_you_mean("xyz", map(str, range(41))) is None
    assert did_you_mean("xyz", []) is None
