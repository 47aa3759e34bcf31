"""What all parts of a spec share: their base, and the kinds of names and numbers in them."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Name = Annotated[
    str,
    Field(
        pattern=r"^[A-Za-z_][A-Za-z0-9_.:/-]*$",
        max_length=200,
        description="a name: letters, digits, _ . : / -",
    ),
]
FileName = Annotated[
    str,
    Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$",
        max_length=100,
        description="a name that becomes a folder: letters, digits, . _ -",
    ),
]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


class Part(BaseModel):
    """Base of all parts of a spec: unknown keys are errors, objects don't change."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)
