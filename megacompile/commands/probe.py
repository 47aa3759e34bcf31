"""What a model takes: its inputs and their sizes, found by loading and running it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from megacompile.errors import MegacompileError, ModelError
from megacompile.system import Send, hooks

if TYPE_CHECKING:
    from megacompile.commands.guesses import Guesses


def serve(requests: Iterator[dict[str, Any]], send: Send) -> None:
    """Worker function: one request describes one model."""
    for request in requests:
        send({"event": "doing", "what": "looking at the model"})
        sketch = look(request["kind"], request["reference"], Path(request["base"]))
        send({"event": "done", **sketch})


def look(kind: str, reference: str, base: Path) -> dict[str, Any]:
    """Inputs and dims of a model as plain data, found by running it.

    Raises:
        MegacompileError: it can't be loaded.
    """
    from megacompile.commands.guesses import constants_as_inputs
    from megacompile.commands.sizes import Found, Search, Tensor

    guesses, load, known = _loaded(kind, reference, base)
    search = Search(load, constants_as_inputs(guesses.constants))
    found = search.run(list(guesses.tensors.values())) if guesses.tensors else None
    if known:  # an exported program says its sizes itself
        found = Found(tuple(options[0] for options in guesses.tensors.values()), known, True)
    if found is None:
        likeliest = [
            options[0] if options else Tensor(name, ("batch",))
            for name, options in guesses.tensors.items()
        ]
        found = Found(tuple(likeliest))
        cause = f" (last: {search.last_error})" if search.last_error else ""
        guesses.notes.append(f"no sizes were found that the model takes{cause}")
        for name in guesses.tensors:
            guesses.unknown.setdefault(name, "shape and dtype")
    dims = dict(found.dims)
    for tensor in found.tensors:
        for size in tensor.shape:
            if isinstance(size, str) and size not in dims:
                dims[size] = (1, 8, 16) if not found.verified else (1, 1, 1)
    entries: dict[str, Any] = {t.name: t.entry() for t in found.tensors}
    entries |= {name: {"value": value} for name, value in guesses.constants.items()}
    return {
        "inputs": {name: entries[name] for name in guesses.order},
        "dims": dims,
        "optional": guesses.optional,
        "unknown": guesses.unknown,
        "notes": guesses.notes,
        "verified": found.verified,
    }


def _loaded(kind: str, reference: str, base: Path) -> tuple[Guesses, Any, dict[str, Any]]:
    """Guesses, a function that gives the form for a signature, and dims known for sure."""
    from megacompile.commands import guesses
    from megacompile.models import Eager, Form, Onnx, Scripted, Signature, bind

    if kind == "onnx":
        path = (base / reference).resolve()
        return guesses.of_onnx(path), lambda s: Onnx(path, _all_outputs(path, s)), {}
    import torch

    from megacompile.models.torchmodules import copy_module

    module: Any
    if kind == "python":
        module = hooks.call(f"model '{reference}'", hooks.load(reference, base))
        if not isinstance(module, torch.nn.Module):
            raise ModelError(
                what=f"'{reference}' returns no model",
                got=type(module).__name__,
                expected="a torch.nn.Module",
            )
        module = copy_module(module).eval()
        found = guesses.of_module(module)
        known: dict[str, Any] = {}
    else:
        try:
            if kind == "torchscript":
                script = torch.jit.load(str(base / reference), map_location="cpu").eval()
                return guesses.of_script(script), lambda s: Scripted(script, s), {}
            program = torch.export.load(base / reference)
        except MegacompileError:
            raise
        except Exception as error:
            raise hooks.fault_of(error, ModelError, f"the {kind} model can't be read") from error
        module = program.module()
        found, known = guesses.of_program(program)

    def load(signature: Signature) -> Form:
        return Eager(module, signature, bind(module.forward, signature.inputs, "forward"))

    return found, load, known


def _all_outputs(path: Path, signature: Any) -> Any:
    from megacompile.models import onnxfile

    outputs = [o.name for o in onnxfile.read(path, weights=False).graph.output]
    return signature.with_outputs(outputs, {}, [])
