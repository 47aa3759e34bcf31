"""Options of `cast`: compute in a 16-bit float, but for the places where that goes wrong."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from megacompile.plan import Effect, Fact, In, Out, Pass


class Cast(Pass[In, Out]):
    """What all forms of `cast` share, and its options."""

    name: ClassVar[str] = "cast"
    effect: ClassVar[Effect] = Effect.NUMERIC
    requires: ClassVar[frozenset[Fact]] = frozenset({Fact.FLOAT32_WEIGHTS, Fact.UNQUANTIZED})
    provides: ClassVar[frozenset[Fact]] = frozenset()
    invalidates: ClassVar[frozenset[Fact]] = frozenset({Fact.FLOAT32_WEIGHTS})

    dtype: Literal["bfloat16", "float16"]
    keep: list[str] | None = Field(
        None,
        description="names, operators or module paths (globs) that stay in float32 besides "
        "normalization, softmax, and whatever overflows on the measured ranges",
    )

    def provided(self) -> frozenset[Fact]:
        return frozenset({Fact.BFLOAT16 if self.dtype == "bfloat16" else Fact.FLOAT16})
