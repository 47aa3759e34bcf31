"""The spec's objects. Data only: a spec names Python to run, nothing in it is executed."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_serializer, model_validator

from megacompile.spec.deploy import Deploy
from megacompile.spec.inputs import AnyInput, Dim, TensorInput, leaves
from megacompile.spec.parts import FileName, Fraction, Name, Part, Positive
from megacompile.spec.training import Train


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
        """Which of the four is given."""
        for kind in ("python", "onnx", "exported"):
            if getattr(self, kind):
                return kind
        return "torchscript"

    @property
    def reference(self) -> str:
        """What is given for it: a file or a callable."""
        return str(getattr(self, self.kind))


Arch = Annotated[
    str,
    Field(pattern=r"^sm_[1-9][0-9]{1,2}$", description="a compute capability, e.g. sm_89"),
]


class Target(Part):
    """The hardware that the artifact is for, and how much of it."""

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
    """Hooks that give what the model is calibrated and judged with."""

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
    """What candidates are measured against, at which sizes, and for how long."""

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
        """Every dim's smallest, usual or largest size."""
        return {name: getattr(dim, which) for name, dim in self.dims.items()}

    def points(self) -> list[dict[str, int]]:
        """Benchmark points, completed by the typical sizes of dims they don't name."""
        typical = self.sizes("typical")
        return [{**typical, **point} for point in self.benchmark.points or [{}]]
