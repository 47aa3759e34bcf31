"""The part of a spec that says what the model takes: sizes, tensors, and how they nest."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, field_validator, model_validator

from megacompile.spec.parts import Name, Part

DIM_NAME = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*$")
DType = Literal[
    "float64",
    "float32",
    "float16",
    "bfloat16",
    "int64",
    "int32",
    "int16",
    "int8",
    "uint8",
    "bool",
]


class Dim(Part):
    """A symbolic size; a plain integer in the spec means a size that never changes."""

    min: int = Field(ge=1, description="smallest size the artifact must take (1 or more)")
    typical: int = Field(ge=1, description="the usual size; examples and calibration use it")
    max: int = Field(ge=1, description="largest size the artifact must take")

    @model_validator(mode="before")
    @classmethod
    def _fixed(cls, value: Any) -> Any:
        if isinstance(value, int) and not isinstance(value, bool):
            return {"min": value, "typical": value, "max": value}
        return value

    @model_validator(mode="after")
    def _ordered(self) -> Dim:
        if not self.min <= self.typical <= self.max:
            raise ValueError(
                f"min <= typical <= max is needed; got {self.min}, {self.typical}, {self.max}"
            )
        return self

    @property
    def fixed(self) -> bool:
        """Whether the size never changes."""
        return self.min == self.max


class TensorInput(Part):
    """A tensor: sizes (a dim's name or an integer), dtype, and the values it may take."""

    shape: list[Name | int]
    dtype: DType = "float32"
    range: tuple[float, float] | None = Field(
        None, description="[low, high], both included; values of random inputs lie in it"
    )
    optional: bool = Field(False, description="callers may leave it out; `default` is fed then")
    default: float | None = Field(
        None, description="the value that means the same as leaving the input out (checked)"
    )

    @field_validator("shape")
    @classmethod
    def _sizes(cls, shape: list[str | int]) -> list[str | int]:
        for size in shape:
            if isinstance(size, int) and size < 0:
                raise ValueError(f"a size is 0 or more, or a dim's name; got {size}")
        return shape

    @model_validator(mode="after")
    def _consistent(self) -> TensorInput:
        if self.range is not None and not self.range[0] <= self.range[1]:
            raise ValueError(f"range needs low <= high; got {list(self.range)}")
        if self.optional and self.default is None:
            raise ValueError("an optional input needs `default`: the value that stands for it")
        if self.default is not None and not self.optional:
            raise ValueError("`default` only makes sense with `optional: true`")
        return self


class ConstantInput(Part):
    """A Python value that is the same in every call; it is built into the artifact."""

    value: bool | int | float | str | None


class TupleInput(Part):
    """A tuple of tensors as one argument; leaves are named NAME.0, NAME.1, …"""

    items: list[AnyInput] = Field(alias="tuple")


class DictInput(Part):
    """A dict of tensors as one argument; leaves are named NAME.KEY."""

    entries: dict[Name, AnyInput] = Field(alias="dict")


def _input_kind(value: Any) -> str:
    for kind, model in (("value", ConstantInput), ("tuple", TupleInput), ("dict", DictInput)):
        if isinstance(value, model) or (isinstance(value, dict) and kind in value):
            return kind
    return "tensor"


AnyInput = Annotated[
    Annotated[TensorInput, Tag("tensor")]
    | Annotated[ConstantInput, Tag("value")]
    | Annotated[TupleInput, Tag("tuple")]
    | Annotated[DictInput, Tag("dict")],
    Discriminator(_input_kind),
]


def leaves(inputs: dict[str, Any]) -> list[tuple[str, TensorInput]]:
    """Tensor leaves with their names, depth first in order."""
    found: list[tuple[str, TensorInput]] = []
    for name, one in inputs.items():
        if isinstance(one, TensorInput):
            found.append((name, one))
        elif isinstance(one, TupleInput):
            found += leaves({f"{name}.{i}": item for i, item in enumerate(one.items)})
        elif isinstance(one, DictInput):
            found += leaves({f"{name}.{key}": item for key, item in one.entries.items()})
    return found


def batch_of(tensors: Mapping[str, TensorInput], sizes: Mapping[str, int]) -> int:
    """Entries of the first input's first axis: what throughput counts."""
    shape = next(iter(tensors.values())).shape
    if not shape:
        return 1
    return sizes[shape[0]] if isinstance(shape[0], str) else shape[0]
