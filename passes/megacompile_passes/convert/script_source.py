"""Compile a module's source to TorchScript, with leaves in and a tuple of leaves out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from megacompile.errors import ModelError
from megacompile.models import Eager, Structure, quiet
from megacompile.spec import ConstantInput, DictInput, TupleInput
from megacompile_passes.messages import FRAME, first_line, user_frame

if TYPE_CHECKING:
    import torch


def compile_source(model: Eager) -> torch.jit.ScriptModule:
    """A module whose forward is generated for the signature and calls the compiled model.

    Raises:
        ModelError: the source is outside TorchScript's subset of Python, or an output's kind is.
    """
    import torch

    wrapper = torch.nn.Module()
    wrapper.training = False
    try:
        with quiet():
            wrapper.module = torch.jit.script(model.module)
            outer = torch.jit._recursive.create_script_module(
                wrapper, lambda _: [], share_types=False, is_tracing=False
            )
            outer.define(_forward_source(model))
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(
            what="torch.jit.script can't compile the model",
            where=_place(error),
            cause=_reason(error),
        ) from error
    return outer


def _reason(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:2])[:300] if lines else first_line(error)


def _place(error: Exception) -> str | None:
    found = FRAME.findall(str(error))
    return f"{found[-1][0]}:{found[-1][1]}" if found else user_frame(error)


def _forward_source(model: Eager) -> str:
    signature = model.signature
    variables = {name: f"leaf_{i}" for i, name in enumerate(signature.tensors)}
    arguments = {name: _literal(name, one, variables) for name, one in signature.inputs.items()}
    args, kwargs = model.binding.split(arguments)
    call = ", ".join([*args, *(f"{k}={v}" for k, v in kwargs.items())])
    lines = [f"value = self.module({call})"]
    leaves: dict[str, str] = {}
    assert signature.structure is not None
    _walk(signature.structure, "value", leaves)
    returned = ", ".join(leaves[name] for name in signature.outputs)
    lines.append(f"return ({returned},)")
    parameters = ", ".join(f"{v}: Tensor" for v in variables.values())
    result = ", ".join("Tensor" for _ in signature.outputs)
    body = "\n".join(f"    {line}" for line in lines)
    return f"def forward(self, {parameters}) -> Tuple[{result}]:\n{body}\n"


def _literal(name: str, one: Any, variables: dict[str, str]) -> str:
    if isinstance(one, ConstantInput):
        return repr(one.value)
    if isinstance(one, TupleInput):
        inner = [_literal(f"{name}.{i}", item, variables) for i, item in enumerate(one.items)]
        return "(" + ", ".join(inner) + ",)"
    if isinstance(one, DictInput):
        pairs = [f"{k!r}: " + _literal(f"{name}.{k}", v, variables) for k, v in one.entries.items()]
        return "{" + ", ".join(pairs) + "}"
    return variables[name]


def _walk(structure: Structure, path: str, leaves: dict[str, str]) -> None:
    """Expressions that reach the tensors of an output."""
    ((kind, content),) = structure.items()
    if kind == "tensor":
        leaves[content] = path
    elif kind in ("tuple", "list"):
        for index, item in enumerate(content):
            _walk(item, f"{path}[{index}]", leaves)
    elif kind == "dict":
        for key, item in content.items():
            _walk(item, f"{path}[{key!r}]", leaves)
    elif kind == "namedtuple":
        for key, item in content[1].items():
            _walk(item, f"{path}.{key}", leaves)
    elif kind == "dataclass":
        raise ModelError(
            what="TorchScript can't return a dataclass",
            got=str(content[0]),
            remedy="return a tuple, a named tuple or a dict of tensors",
        )
