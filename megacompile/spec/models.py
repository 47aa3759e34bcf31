"""The spec's objects. Data only: a spec names Python to run, nothing in it is executed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    field_validator,
    model_serializer,
    model_validator,
)

from megacompile.spec.deploy import Deploy
from megacompile.spec.training import Train

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


class ModelSource(Part):
    """Where the model comes from: exactly one of the four."""

    python: str | None = Field(
        None,
        description="FILE.py:CALLABLE beside the spec, or "
        "package.module:CALLABLE; called without arguments it returns "
        "a torch.nn.Module",
    )
    onnx: str | None = Field(
        None,
        description="an ONNX file beside the spec, or "
        "package:NAME/path inside an installed Python package",
    )
    exported: str | None = Field(None, description="a torch.export archive (.pt2)")
    torchscript: str | None = Field(None, description="a TorchScript file (.pt)")

    @model_validator(mode="after")
    def _one(self) -> ModelSource:
        given = [k for k in ("python", "onnx", "exported", "torchscript") if getattr(self, k)]
        if len(given) != 1:
            raise ValueError(
                "exactly one of python, onnx, exported, torchscript is needed; "
                + (f"got {', '.join(given)}" if given else "got none")
            )
        if self.python and ":" not in self.python:
            raise ValueError(f"python: '{self.python}' has no ':'; write FILE.py:CALLABLE")
        return self

    @property
    def kind(self) -> Literal["python", "onnx", "exported", "torchscript"]:
        for kind in ("python", "onnx", "exported"):
            if getattr(self, kind):
                return kind
        return "torchscript"

    @property
    def reference(self) -> str:
        return str(getattr(self, self.kind))


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


Arch = Annotated[
    str,
    Field(pattern=r"^sm_[1-9][0-9]{1,2}$", description="a compute capability, e.g. sm_89"),
]


class Target(Part):
    device: Literal["cpu", "cuda"] = "cpu"
    threads: Literal["auto"] | Annotated[int, Field(ge=1, le=1024)] = Field(
        "auto", description="auto: this process's affinity and cgroup, not the host's cores"
    )
    isa: list[str] | None = Field(
        None, description="cpu: instruction sets the artifact may need; default: this host's"
    )
    arch: list[Arch] | None = Field(
        None,
        min_length=1,
        description="cuda: compute capabilities the engine must run on; default: this host's GPU",
    )

    @model_validator(mode="after")
    def _of_the_device(self) -> Target:
        if self.device == "cuda" and self.isa is not None:
            raise ValueError("`isa` is for device cpu; a GPU's is `arch`, e.g. [sm_89]")
        if self.device == "cpu" and self.arch is not None:
            raise ValueError("`arch` is for device cuda; a CPU's is `isa`, e.g. [avx512_vnni]")
        if self.arch is not None and len(set(self.arch)) != len(self.arch):
            raise ValueError("an architecture stands twice in `arch`")
        return self


class Sampled(Part):
    """A hook that yields inputs: dicts of input name to array, one sample each."""

    python: str
    samples: int = Field(64, ge=1, le=1_000_000)


class Evaluation(Part):
    """A hook `evaluate(run) -> {metric: number or per-sample scores}`."""

    python: str
    lower_is_better: list[str] = Field(default_factory=list)


class Data(Part):
    calibration: Sampled | None = None
    evaluation: Evaluation | None = None


class Item(Part):
    """A pass or a backend with its options: `name` or `name: {options}`."""

    name: str
    options: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        if isinstance(value, str):
            return {"name": value}
        if isinstance(value, dict) and len(value) == 1 and "name" not in value:
            ((name, options),) = value.items()
            if options is not None and not isinstance(options, dict):
                raise ValueError(f"options of '{name}' must be a mapping; got {options!r}")
            return {"name": name, "options": options or {}}
        if isinstance(value, dict) and set(value) <= {"name", "options"} and "name" in value:
            return value
        raise ValueError("write `name` or `name: {options}`, one to each list item")

    @model_serializer
    def _as_written(self) -> Any:
        return {self.name: self.options} if self.options else self.name


class Variant(Part):
    """A continuation of the common passes, and the backends to lower it to."""

    passes: list[Item] = Field(default_factory=list)
    backends: list[Item] | None = Field(None, description="default: the spec's `backends`")


class Budget(Part):
    """Limits; a candidate outside one of them can't win."""

    metric_drop: float | None = Field(
        None, ge=0, description="largest relative loss of any metric against the original"
    )
    cosine: Fraction | None = Field(
        None, description="least cosine similarity to the original, of the worst sample"
    )
    size_mb: Positive | None = Field(None, description="largest bundle, in 10^6 bytes")
    speedup: Positive | None = Field(
        None,
        description="least speed-up over the first baseline at the first point "
        "(lower end of its interval)",
    )
    latency_ms: Positive | None = Field(None, description="largest median at the first point")
    peak_memory_mb: Positive | None = Field(None, description="largest memory of the process")
    peak_memory: Positive | None = Field(
        None, description="training: largest memory of a step, as a share of the plain step's"
    )
    step_time: Positive | None = Field(
        None, description="training: longest step, as a multiple of the plain step's"
    )
    gradient_cosine: Fraction | None = Field(
        None, description="training: least cosine of any parameter's gradient to the plain step's"
    )


class Benchmark(Part):
    baselines: list[str] | None = Field(
        None,
        description="eager, torch.compile, or a backend on the unchanged model; the first "
        "is what speed-ups are quoted against",
    )
    points: list[dict[Name, Annotated[int, Field(ge=1)]]] | None = Field(
        None, description="sizes to measure at; default: the typical ones"
    )
    seconds: Positive = Field(20.0, description="time limit of each point, in seconds")


class Spec(Part):
    """A spec, whole: the model, its inputs, the hardware, and what may be lost."""

    name: FileName
    model: ModelSource
    dims: dict[Name, Dim] = Field(default_factory=dict)
    inputs: dict[Name, AnyInput] = Field(min_length=1)
    outputs: list[Name] | None = Field(None, min_length=1)
    workload: Literal["inference", "training"] = "inference"
    train: Train | None = Field(None, description="training: loss, batches, optimizer")
    target: Target = Target()
    data: Data = Data()
    passes: list[Item] = Field(default_factory=list)
    variants: dict[FileName, Variant] = Field(default_factory=dict)
    backends: list[Item] | None = Field(None, description="for variants that name none")
    budget: Budget = Budget()
    benchmark: Benchmark = Benchmark()
    deploy: Deploy = Deploy()
    seed: int = Field(0, ge=0, le=2**31)

    def tensors(self) -> dict[str, TensorInput]:
        """All tensor leaves by name, in forward's order."""
        return dict(leaves(self.inputs))

    def sizes(self, which: Literal["min", "typical", "max"]) -> dict[str, int]:
        return {name: getattr(dim, which) for name, dim in self.dims.items()}

    def points(self) -> list[dict[str, int]]:
        """Benchmark points, completed by the typical sizes of dims they don't name."""
        typical = self.sizes("typical")
        return [{**typical, **point} for point in self.benchmark.points or [{}]]


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


DIM_NAME = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*$")
