"""What a pass class declares: complete, and its forms read off `run`."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from megacompile.errors import PassError
from megacompile.models import Eager, Exported
from megacompile.plan.declarations import check_class, consumes, produces
from megacompile.plan.passes import Effect, Fact, Pass, PassContext, Result


class Whole(Pass[Eager, Exported]):
    """A pass that declares all it must."""

    name: ClassVar[str] = "whole"
    effect: ClassVar[Effect] = Effect.EXACT
    requires: ClassVar[frozenset[Fact]] = frozenset()
    provides: ClassVar[frozenset[Fact]] = frozenset()
    invalidates: ClassVar[frozenset[Fact]] = frozenset()

    def run(self, model: Eager, ctx: PassContext) -> Result[Exported]:
        raise NotImplementedError


class Unnamed(Pass[Eager, Eager]):
    """Neither a name nor an effect, and no `run`."""

    requires: ClassVar[frozenset[Fact]] = frozenset()
    provides: ClassVar[frozenset[Fact]] = frozenset()
    invalidates: ClassVar[frozenset[Fact]] = frozenset()


class Vague(Whole):
    """`run` takes anything."""

    def run(self, model: Any, ctx: PassContext) -> Result[Exported]:
        raise NotImplementedError


class Bare(Whole):
    """`run` returns the model alone."""

    def run(self, model: Eager, ctx: PassContext) -> Exported:  # type: ignore[override]
        raise NotImplementedError


def test_forms_are_read_off_the_annotations() -> None:
    assert check_class(Whole, "here") is Whole
    assert (consumes(Whole), produces(Whole)) == ("Eager", "Exported")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (3, ["not a pass", "a subclass of megacompile.Pass", "got: 3"]),
        (dict, ["not a pass"]),
        (Unnamed, ["'Unnamed' is incomplete", "name: ClassVar, effect: ClassVar, method run"]),
        (Vague, ["'Vague' does not say which form it takes", "F and G one of Eager"]),
        (Bare, ["'Bare' does not say which form it returns", "-> Result[G]"]),
    ],
)
def test_what_is_no_whole_pass_is_its_authors_fault(given: object, words: list[str]) -> None:
    with pytest.raises(PassError) as caught:
        check_class(given, "mine.py:Mine")
    assert caught.value.audience == "pass author"
    for one in words:
        assert one in str(caught.value)
