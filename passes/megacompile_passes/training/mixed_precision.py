"""Compute a step in a 16-bit float: autocast over float32 master weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from megacompile.errors import PassError
from megacompile.plan import Effect, Fact, Pass, PassContext, Result, Sites
from megacompile.training import Scaler, Training

# Instruction sets that compute in the dtype; without them a CPU converts back and forth.
NATIVE = {"float16": ("avx512_fp16", "amx_fp16"), "bfloat16": ("avx512_bf16", "amx_bf16")}

SCALING = ("initial_scale", "minimum_scale", "maximum_scale", "growth_interval")


class MixedPrecision(Pass[Training, Training]):
    """Matrix products in 16 bit; normalization, softmax and losses in float32.

    float16 gets a gradient scaler: gradients are unscaled before they are clipped, and a step
    that overflows is skipped and counted.
    """

    name: ClassVar[str] = "mixed-precision"
    effect: ClassVar[Effect] = Effect.NUMERIC
    requires: ClassVar[frozenset[Fact]] = frozenset()
    provides: ClassVar[frozenset[Fact]] = frozenset()
    invalidates: ClassVar[frozenset[Fact]] = frozenset()
    libraries: ClassVar[tuple[str, ...]] = ("torch",)

    dtype: Literal["bfloat16", "float16"] = "bfloat16"
    initial_scale: float = Field(8192.0, gt=0, description="float16: the scaler's first scale")
    minimum_scale: float = Field(4096.0, gt=0, description="float16: the scale stays above")
    maximum_scale: float = Field(65536.0, gt=0, description="float16: the scale stays below")
    growth_interval: int = Field(
        2000, ge=1, description="float16: steps without overflow before the scale doubles"
    )

    @model_validator(mode="after")
    def _scales(self) -> Self:
        alien = [n for n in SCALING if n in self.model_fields_set and self.dtype != "float16"]
        if alien:
            raise ValueError(
                f"`{alien[0]}` belongs to dtype: float16; {self.dtype} has the range "
                "of float32 and needs no gradient scaler"
            )
        if not self.minimum_scale <= self.initial_scale <= self.maximum_scale:
            raise ValueError(
                "minimum_scale <= initial_scale <= maximum_scale is needed; got "
                f"{self.minimum_scale:g}, {self.initial_scale:g}, {self.maximum_scale:g}"
            )
        return self

    def unsupported(self, device: str, isa: Sequence[str]) -> PassError | None:
        if device != "cpu" or self.dtype != "float16" or self._is_native(isa):
            return None
        return PassError(
            what="this CPU does not compute in float16",
            expected=" or ".join(NATIVE["float16"]),
            got=", ".join(isa) or "none of the known instruction sets",
            remedy="use dtype: bfloat16, which needs no gradient scaler either",
        )

    def _is_native(self, isa: Sequence[str]) -> bool:
        return not set(NATIVE[self.dtype]).isdisjoint(isa)

    def run(self, model: Training, ctx: PassContext) -> Result[Training]:
        training = ctx.needs_training(self.name)
        if model.recipe.autocast is not None:
            raise PassError(
                what=f"the step is computed in {model.recipe.autocast} already",
                remedy="write mixed-precision once",
            )
        lack = self.unsupported(training.device, training.isa)
        if lack is not None:
            raise lack
        sites = Sites("parameter")
        for name, parameter in model.module.named_parameters():
            if parameter.is_floating_point() and parameter.element_size() == 4:
                sites.change()
            else:
                sites.skip(name, f"it is {parameter.dtype}, no float32 master weight")
        notes = []
        if training.device == "cpu" and not self._is_native(training.isa):
            notes.append(
                f"this CPU computes {self.dtype} by converting to float32: memory is "
                "saved, time is not"
            )
        scaler = None
        if self.dtype == "float16":
            scaler = Scaler(
                initial=self.initial_scale,
                minimum=self.minimum_scale,
                maximum=self.maximum_scale,
                growth_interval=self.growth_interval,
            )
            notes.append(
                f"gradients are scaled by {self.initial_scale:g} at first, kept within "
                f"{self.minimum_scale:g} and {self.maximum_scale:g}"
            )
        recipe = model.recipe.edited(autocast=self.dtype, scaler=scaler)
        return Result(model.with_recipe(recipe), sites, notes)
