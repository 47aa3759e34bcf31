"""Options of `simplify`: remove what the outputs don't need. One class per form."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from megacompile.plan import Effect, Fact, In, Out, Pass


class Simplify(Pass[In, Out]):
    """What all forms of `simplify` share, and its options."""

    name: ClassVar[str] = "simplify"
    effect: ClassVar[Effect] = Effect.EXACT
    requires: ClassVar[frozenset[Fact]] = frozenset()
    provides: ClassVar[frozenset[Fact]] = frozenset()
    invalidates: ClassVar[frozenset[Fact]] = frozenset()
    cleanup: ClassVar[bool] = True

    growth: float = Field(
        1.1,
        ge=1,
        description="largest size after over size before (plus 1 MB); beyond it the "
        "result is thrown away",
    )
