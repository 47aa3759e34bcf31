"""Options of `quantize`: weights, and by method activations too, in 8-bit integers."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from megacompile.plan import Effect, Fact, In, Out, Pass, Traits

KEEP: list[str] = Field(
    default_factory=list,
    description="names, operators or module paths (globs) that stay in float",
)
"""The option of everything that quantizes."""


class Quantize(Pass[In, Out]):
    """What all forms of `quantize` share, and its options."""

    name: ClassVar[str] = "quantize"
    effect: ClassVar[Effect] = Effect.LOSSY
    requires: ClassVar[frozenset[Fact]] = frozenset({Fact.FLOAT32_WEIGHTS, Fact.UNQUANTIZED})
    provides: ClassVar[frozenset[Fact]] = frozenset({Fact.QUANTIZED})
    invalidates: ClassVar[frozenset[Fact]] = frozenset({Fact.FLOAT32_WEIGHTS, Fact.UNQUANTIZED})

    method: Literal["static", "dynamic", "weight-only"] = Field(
        description="static: activations by calibrated ranges; dynamic: by ranges of each call; "
        "weight-only: activations stay in float"
    )
    bits: Literal[8, 4] = Field(8, description="of weights; activations have 8")
    per_channel: bool = Field(True, description="one scale per output channel of a weight")
    symmetric: Literal["auto"] | bool = Field(
        "auto", description="zero points at 0 for activations too; auto: where the backend needs it"
    )
    keep: list[str] = KEEP

    def resolve(self, traits: Traits) -> Quantize[In, Out]:
        if self.symmetric != "auto":
            return self
        return self.model_copy(update={"symmetric": traits.symmetric})

    def refusal(self, traits: Traits) -> str | None:
        if self.method == "dynamic" and not traits.dynamic_ranges:
            return (
                f"{traits.backend} has no integers by the ranges of each call: write "
                "method: static or weight-only"
            )
        if self.method == "static" and self.symmetric is False and traits.symmetric:
            return f"{traits.backend} refuses zero points: leave symmetric out, or write true"
        return None

    def needs_calibration(self) -> bool:
        return self.method == "static"
