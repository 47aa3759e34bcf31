"""torch's ONNX exporter, and why it can't write a program."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NoReturn

from megacompile.errors import PassError
from megacompile.models import Exported, quiet
from megacompile_passes.messages import first_line
from megacompile_passes.programs.nodes import module_path
from megacompile_passes.programs.recurrence import symbolic_recurrence

if TYPE_CHECKING:
    import torch

# How the exporter's messages name a node, and the operator of one.
NODE = re.compile(r"%(\w+) .*?target=([\w.:]+)")
OPERATORS = (
    re.compile(r"torch\.ops\.([\w.]+)"),
    re.compile(r"OpOverload\(op='([\w.]+)'"),
)


def export_onnx(model: Exported, opset: int) -> torch.onnx.ONNXProgram:
    """The program as torch's exporter writes it, not saved yet.

    Raises:
        PassError: an operator has no counterpart in ONNX, or the exporter fails.
    """
    import torch

    try:
        with quiet(), symbolic_recurrence(), torch.no_grad():
            program = torch.onnx.export(
                model.program,
                (),
                dynamo=True,
                opset_version=opset,
                optimize=True,
                verbose=False,
                input_names=list(model.signature.tensors),
                output_names=list(model.signature.outputs),
            )
    except Exception as error:  # noqa: BLE001 - the exporter wraps whatever it met
        _explain(error, model)
    assert program is not None
    return program


def _explain(error: Exception, model: Exported) -> NoReturn:
    """Name the operator and the module that the exporter stumbled over."""
    chain: list[BaseException] = [error]
    while chain[-1].__cause__ is not None:
        chain.append(chain[-1].__cause__)
    node = _named_node("\n".join(map(str, chain)), list(model.program.graph.nodes))
    missing = any(type(one).__name__ == "DispatchError" for one in chain)
    what = "torch's ONNX exporter failed"
    if node is not None:
        what += f" at operator '{node.target}'"
        if missing:
            what = f"ONNX has no counterpart of operator '{node.target}'"
    raise PassError(
        what=what,
        where=_place(node) if node is not None else None,
        cause=first_line(chain[-1]),
        remedy="write that part with other operators, or use a backend that takes the exported "
        "program itself (aotinductor)",
    ) from error


def _named_node(text: str, nodes: list[torch.fx.Node]) -> torch.fx.Node | None:
    """The node that a message names, or else the first one of an operator that it names."""
    named = NODE.search(text)
    for node in nodes:
        if named and node.name == named[1]:
            return node
    operators = [name for pattern in OPERATORS for name in pattern.findall(text)]
    for node in nodes:
        if node.op == "call_function" and str(node.target).startswith(tuple(operators)):
            return node
    return None


def _place(node: torch.fx.Node) -> str:
    path = module_path(node)
    return f"module '{path}', node '{node.name}'" if path else f"node '{node.name}'"
