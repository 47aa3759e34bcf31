"""The part of a spec that says how a bundle is served."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from megacompile.spec.parts import Part

Count = Annotated[int, Field(ge=1)]
Size = Annotated[int, Field(ge=-1)]
ServedDType = Literal[
    "string",
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


class Port(Part):
    """A tensor at the ensemble's border. Its shape is that of one sample, without the batch."""

    dtype: ServedDType
    shape: list[Size] = Field(description="sizes of one sample; -1 where they vary")

    @field_validator("shape")
    @classmethod
    def _sizes(cls, shape: list[int]) -> list[int]:
        if 0 in shape:
            raise ValueError("a size is 1 or more, or -1 where it varies; got 0")
        return shape


class Preprocess(Part):
    """A Python step before the model: it takes `inputs` and returns the model's inputs by name."""

    python: str = Field(description="FILE.py:CALLABLE beside the spec")
    inputs: dict[str, Port] = Field(min_length=1)


class Postprocess(Part):
    """A Python step after the model: it takes the model's outputs and returns `outputs`."""

    python: str = Field(description="FILE.py:CALLABLE beside the spec")
    outputs: dict[str, Port] = Field(min_length=1)


class Versions(Part):
    """Which versions the server offers: the newest, or named ones."""

    latest: Count | None = None
    specific: list[Count] | None = Field(None, min_length=1)

    @model_validator(mode="after")
    def _one(self) -> Versions:
        if (self.latest is None) == (self.specific is None):
            raise ValueError("write `latest: N` or `specific: [N, …]`, one of them")
        return self


class Triton(Part):
    """A model repository of NVIDIA's Triton Inference Server."""

    model_name: str | None = Field(
        None,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$",
        description="what clients call; default: the spec's name",
    )
    platform: Literal["python", "native"] = Field(
        "python",
        description="python: our runner, which answers like the bundle on every server; "
        "native: the server's own backend for this kind of engine",
    )
    max_batch_size: Literal["auto"] | Annotated[int, Field(ge=0)] = Field(
        "auto", description="auto: the batch dim's max, 0 without one; 0 turns batching off"
    )
    preferred_batch_sizes: Literal["auto"] | list[Count] = Field(
        "auto", description="auto: from the measured batch curve; []: any size"
    )
    max_queue_delay_us: Literal["auto"] | Annotated[int, Field(ge=0)] = Field(
        "auto", description="how long a request may wait for others; auto: from the batch curve"
    )
    dynamic_batching: bool = Field(
        True, description="let the server put requests that wait together into one run"
    )
    instances: Count = Field(1, description="copies of the model that work at the same time")
    versions: Literal["all"] | Versions = Versions(latest=1)
    warmup: bool = Field(True, description="run the bundle's samples before a version is ready")
    preprocess: Preprocess | None = None
    postprocess: Postprocess | None = None

    @property
    def hooks(self) -> list[str]:
        """References to the user's Python that travels with the bundle."""
        return [one.python for one in (self.preprocess, self.postprocess) if one is not None]


class Deploy(Part):
    """How the winner is served; `megacompile export-triton` follows it."""

    triton: Triton | None = None
