"""What a model's inputs may be, guessed from its forward, its layers, or its ONNX file."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from megacompile.commands.layers import MASK, candidates, layers_of
from megacompile.commands.sizes import Range, Tensor
from megacompile.errors import ModelError
from megacompile.spec import DIM_NAME, ConstantInput, DType

if TYPE_CHECKING:
    import torch

NAMELESS = re.compile(r"^unk_|DynamicDimension|^None$")  # what exporters call a size without a name


@dataclass
class Guesses:
    """Candidates for every tensor input, in forward's order, and all that is no tensor.

    `unknown` maps an input to why its line has to be filled in.
    """

    tensors: dict[str, list[Tensor]] = field(default_factory=dict)
    constants: dict[str, Any] = field(default_factory=dict)
    optional: list[str] = field(default_factory=list)
    unknown: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    order: list[str] = field(default_factory=list)


def of_module(module: torch.nn.Module) -> Guesses:
    """From the parameters of forward and the layers, in the order they were made."""
    found = Guesses()
    parameters = list(inspect.signature(module.forward).parameters.values())
    named = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    if not named:
        named = [inspect.Parameter("input", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
        found.notes.append("forward takes *args: the name `input` is ours")
    required = [p for p in named if p.default is p.empty and not _plain(p.annotation)]
    if not required:  # all are optional, as in transformers: the first is the model's input
        required = [p for p in named if p.default is None][:1]
    for parameter in named:
        name = parameter.name
        if parameter in required:
            found.tensors[name] = []
            found.order.append(name)
        elif parameter.default is None:
            found.optional.append(name)
        elif isinstance(parameter.default, (bool, int, float, str)):
            found.constants[name] = parameter.default
            found.order.append(name)
        elif parameter.default is parameter.empty:
            found.constants[name] = _plain(parameter.annotation)
            found.unknown[name] = f"the value of `{parameter}`; it is built into the artifact"
            found.order.append(name)
        else:
            found.notes.append(f"`{name}` keeps its default")
    layers = list(layers_of(module))
    for number, name in enumerate(found.tensors):
        found.tensors[name] = list(candidates(name, number, layers))
    return found


def of_script(module: Any) -> Guesses:
    """From the schema of a TorchScript forward; it takes tensors alone."""
    found = Guesses()
    layers = list(layers_of(module))
    for number, argument in enumerate(module.forward.schema.arguments[1:]):
        name = argument.name
        found.order.append(name)
        found.tensors[name] = list(candidates(name, number, layers))
        if str(argument.type) != "Tensor":
            raise ModelError(
                what=f"'{name}' of the TorchScript's forward is no tensor",
                expected="tensors alone",
                got=str(argument.type),
                remedy="script a module whose forward takes tensors",
            )
    return found


def of_program(program: torch.export.ExportedProgram) -> tuple[Guesses, dict[str, Range]]:
    """From an exported program, which knows its sizes and their ranges."""
    found, dims = Guesses(), dict[str, Range]()
    names: dict[str, str] = {}
    wanted = set(program.graph_signature.user_inputs)
    for node in program.graph.nodes:
        if node.op != "placeholder" or node.name not in wanted:
            continue
        value = node.meta["val"]
        shape: list[str | int] = []
        for size in value.shape:
            if isinstance(size, int):
                shape.append(size)
                continue
            first = not shape and "batch" not in dims
            dim = names.setdefault(str(size), "batch" if first else f"{node.name}_{len(shape)}")
            limits = program.range_constraints.get(size.node.expr)
            dims[dim] = _limits(limits)
            shape.append(dim)
        name, dtype = node.name, str(value.dtype).removeprefix("torch.")
        found.order.append(name)
        found.tensors[name] = [Tensor(name, tuple(shape), dtype, _span(name, dtype))]
        if dtype.startswith("int"):
            found.unknown[name] = "the range of its values"
    return found, dims


def of_onnx(path: Path) -> Guesses:
    """From the inputs of an ONNX file: names, dtypes and sizes stand there."""
    import onnx

    from megacompile.models import onnxfile

    graph = onnxfile.read(path, weights=False).graph
    found = Guesses()
    weights = {t.name: t for t in graph.initializer}
    for one in graph.input:
        if one.name in weights:
            continue
        tensor = one.type.tensor_type
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type).name
        if dtype not in get_args(DType):
            raise ModelError(
                what=f"input '{one.name}' of the ONNX model has a dtype that can't be compiled for",
                where=str(path),
                got=dtype,
                expected=", ".join(get_args(DType)),
            )
        found.order.append(one.name)
        if not tensor.HasField("shape"):
            found.tensors[one.name] = [Tensor(one.name, ("batch",), dtype)]
            found.unknown[one.name] = "the file does not say its shape"
            continue
        dims = tensor.shape.dim
        shape = tuple(_onnx_size(one.name, dims, axis) for axis in range(len(dims)))
        ids = _gathered(graph, one.name, weights)
        span = (0.0, ids - 1.0) if ids else _span(one.name, dtype)
        found.tensors[one.name] = [Tensor(one.name, shape, dtype, span)]
        if span is None and dtype.startswith("int"):
            found.unknown[one.name] = "the range of its values"
    return found


def _onnx_size(name: str, dims: Sequence[Any], axis: int) -> str | int:
    one = dims[axis]
    if one.HasField("dim_value") and one.dim_value > 0:
        return int(one.dim_value)
    word = re.sub(r"\W+", "_", one.dim_param).strip("_")
    if word and not word[0].isdigit() and not NAMELESS.search(word):
        return "batch" if word in ("batch_size", "N") else word
    if axis == 0:
        return "batch"
    if len(dims) == 4 and axis >= 2:
        return ("height", "width")[axis - 2]
    owner = re.sub(r"\W+", "_", name)
    return f"{owner if DIM_NAME.match(owner) else 'input'}_{axis}"


def _gathered(graph: Any, name: str, weights: dict[str, Any]) -> int | None:
    """Rows of the table that an input of ids is looked up in."""
    same = {name}
    for node in graph.node:
        if node.op_type in ("Cast", "Identity", "Reshape") and node.input[0] in same:
            same.add(node.output[0])
        if node.op_type == "Gather" and node.input[1] in same and node.input[0] in weights:
            return int(weights[node.input[0]].dims[0])
    return None


def _limits(limits: Any) -> Range:
    low = max(1, int(limits.lower)) if limits is not None else 1
    high = int(limits.upper) if limits is not None and limits.upper < 2**30 else max(16, 2 * low)
    return low, min(high, max(low, 4)), high


def _plain(annotation: Any) -> Any:
    """A value of a plain annotated type, to be replaced by the user; None if it is no such."""
    word = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    return {"bool": True, "int": 1, "float": 1.0, "str": "FILL-IN"}.get(word)


def constants_as_inputs(constants: dict[str, Any]) -> dict[str, ConstantInput]:
    """Values that are built into the artifact, as a spec's inputs."""
    return {name: ConstantInput(value=value) for name, value in constants.items()}


def _span(name: str, dtype: str) -> tuple[float, float] | None:
    if dtype.startswith(("int", "uint")):
        return (0.0, 1.0) if MASK.search(name) else None
    return None
