"""ONNX into a TensorRT network, and the parser's complaints in words a user can act on."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from megacompile.errors import BackendError
from megacompile.models import onnxfile
from megacompile.plan import Refusal

# Where the exporter of to-onnx notes the modules a node came from (torch.onnx, dynamo).
SCOPES = "pkg.torch.onnx.name_scopes"

BRANCHES = (
    "TensorRT fails inside a branch of an If or the body of a Loop: give it a model without one, "
    "e.g. with the condition fixed, or use onnxruntime on device cuda"
)
# What a message of parser or builder means for the one who wrote the spec.
REMEDIES = (
    (
        "zero point",
        "TensorRT takes symmetric quantization: write `quantize: {symmetric: true}`, or "
        "leave symmetric out",
    ),
    ("FP32 GEMM", "add `cast: {dtype: float16}` for sm_75, or leave sm_75 out of target.arch"),
    (
        "HW-specific datatypes: b16",
        "sm_75 has no bfloat16: use `cast: {dtype: float16}`, or leave sm_75 out of target.arch",
    ),
    ("MatMulInteger", "dynamic quantization is not TensorRT's: use `quantize: {method: static}`"),
    (
        "DynamicQuantizeLinear",
        "dynamic quantization is not TensorRT's: use `quantize: {method: static}`",
    ),
    (
        "same input types",
        "use the `cast` pass on the whole model: TensorRT's networks are "
        "strongly typed, one operator mixes no dtypes",
    ),
    (
        "for profile",
        "a size that `dims` allows does not fit the model: narrow the range, or fix that size",
    ),
    (
        "non-empty gather from an empty",
        "a branch is taken apart wrongly at build time: fix the "
        "sizes that it depends on, or use onnxruntime",
    ),
    ("ScopeType", BRANCHES),
    ("Unnamed Layer", BRANCHES),
    ("IConditional", BRANCHES),
    ("Plugin not found", "TensorRT has no such operator: write it with ONNX's own"),
)
DEFAULT_REMEDY = (
    "write that part of the model with other operators, or lower this variant with "
    "onnxruntime or aotinductor on device cuda"
)


class Log:
    """TensorRT's messages, kept instead of printed: the last errors are the reason of a failure."""

    def __init__(self, api: Any) -> None:
        lines: list[str] = []

        class Logger(api.ILogger):
            def __init__(self) -> None:
                api.ILogger.__init__(self)

            def log(self, severity: Any, message: str) -> None:
                if severity in (api.ILogger.ERROR, api.ILogger.INTERNAL_ERROR):
                    lines.append(message)

        self.lines = lines
        self.logger = Logger()


def remedy_of(reason: str, operator: str = "") -> str:
    """What to write in the spec against a message of TensorRT."""
    text = f"{operator} {reason}"
    return next((remedy for sign, remedy in REMEDIES if sign in text), DEFAULT_REMEDY)


def parse(api: Any, network: Any, log: Log, path: Path) -> list[Refusal]:
    """Fill an empty network from an ONNX file; what the parser refuses comes back as a list."""
    parser = api.OnnxParser(network, log.logger)
    if parser.parse_from_file(str(path)):
        return []
    return list(_errors(parser, path, log))


def unsupported(api: Any, log: Log, builder: Any, path: Path) -> list[Refusal]:
    """Every operator of an ONNX file that the parser does not take: not only the first."""
    network = builder.create_network(strongly_typed(api))
    parser = api.OnnxParser(network, log.logger)
    supported = parser.supports_model_v2(path.read_bytes(), str(path))
    if supported and parser.num_errors == 0:
        return []
    found = list(_errors(parser, path, log))
    return list(dict.fromkeys(found))


def strongly_typed(api: Any) -> int:
    """The flags of a network whose dtypes are the model's. TensorRT-RTX knows no other."""
    flag = getattr(api.NetworkDefinitionCreationFlag, "STRONGLY_TYPED", None)
    return 0 if flag is None else 1 << int(flag)


def refuse(refusals: list[Refusal], flavour: str) -> BackendError:
    """The error of a model that the parser refused: the first node whole, the others by name."""
    first, more = refusals[0], refusals[1:]
    others = f"; and {len(more)} more: {', '.join(one.where for one in more[:5])}" if more else ""
    return BackendError(
        what=f"{flavour} does not take operator '{first.operator}'{others}",
        where=first.where,
        cause=first.reason,
        remedy=first.remedy,
    )


def _errors(parser: Any, path: Path, log: Log) -> Iterator[Refusal]:
    modules = module_paths(path)
    for index in range(parser.num_errors):
        error = parser.get_error(index)
        name = error.node_name() or f"number {error.node()}"
        operator = error.node_operator() or "?"
        # For an operator that it doesn't know at all, the parser's reason is the word "false".
        reason = clean(error.desc())
        if reason == "false":
            reason = f"its ONNX parser has no counterpart of {operator}"
        yield Refusal(operator, name, modules.get(name), reason, remedy_of(reason, operator))
    if parser.num_errors == 0:
        reason = clean(log.lines[-1]) if log.lines else "no reason was given"
        yield Refusal("?", "?", None, reason, remedy_of(reason))


def blamed(path: Path, message: str) -> str | None:
    """The first node of the model that a message of the builder names, with its module."""
    model = onnxfile.read(path, weights=False)
    nodes = {node.name: node.op_type for node in onnxfile.all_nodes(model)}
    words = re.findall(r"[^\s'\"():,]+(?::\d+)?", message)
    name = next((word for word in words if word in nodes), None)
    if name is None:
        return None
    module = module_paths(path).get(name)
    owner = f" of module '{module}'" if module else ""
    return f"node '{name}' ({nodes[name]}){owner}"


def clean(message: str) -> str:
    """A message without the library's source positions and its remarks on the absent driver, on
    one line."""
    lines = [line for line in message.splitlines() if "catchCudaError" not in line]
    flat = re.sub(r" ?In \w+ at /_src/[\w/.]+:\d+", "", " ".join(" ".join(lines).split()))
    return flat.removeprefix("Assertion failed: ")


def module_paths(path: Path) -> dict[str, str]:
    """The module each node came from, by node name, where the exporter noted it."""
    found = {}
    for node in onnxfile.all_nodes(onnxfile.read(path, weights=False)):
        scopes = next((p.value for p in node.metadata_props if p.key == SCOPES), "")
        names = scopes.strip("[]").replace("'", "").split(", ")
        inner = [name for name in names[:-1] if name]
        if inner:
            # `module` is the wrapper that every conversion starts from (torchmodules.Flat).
            found[node.name] = inner[-1].removeprefix("module").removeprefix(".") or "the model"
    return found
