"""The user's model found and loaded, from any of the four kinds of source."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path
from typing import Any

from megacompile.errors import ModelError, SpecError, did_you_mean
from megacompile.models.forms import Eager, Form, Onnx, Scripted
from megacompile.models.signature import Binding, Signature, bind
from megacompile.spec import Spec, TensorInput
from megacompile.system import hooks


def base_signature(spec: Spec) -> Signature:
    """The signature before the outputs are known."""
    return Signature(spec.inputs, spec.dims)


def source_path(spec: Spec, base: Path) -> Path | None:
    """The model's file: beside the spec, or inside an installed package; None for a module.

    Raises:
        SpecError: there is no such file or package.
    """
    source = spec.model
    if source.kind == "python":
        return hooks.locate(source.reference, base)[0]
    reference = source.reference
    if reference.startswith("package:"):
        name, _, inner = reference.removeprefix("package:").partition("/")
        found = importlib.util.find_spec(name)
        if found is None or not found.submodule_search_locations:
            raise SpecError(
                what=f"the Python package '{name}' is not installed",
                where=f"model.{source.kind}",
                got=reference,
                remedy=f"pip install {name.replace('_', '-')}",
            )
        path = Path(found.submodule_search_locations[0]) / inner
    else:
        path = (base / reference).resolve()
    if not path.is_file():
        near = did_you_mean(path.name, [p.name for p in path.parent.glob("*")])
        raise SpecError(
            what=f"no such file '{reference}'",
            where=f"model.{source.kind}",
            expected=f"a file in {path.parent}",
            remedy=near,
        )
    return path


def load_original(spec: Spec, base: Path, signature: Signature | None = None) -> Form:
    """The model as a form, in evaluation mode; what the user's code returned stays untouched.

    Raises:
        SpecError, ModelError: it can't be found, built, read, or called with the spec's inputs.
    """
    signature = signature or base_signature(spec)
    path = source_path(spec, base)
    if spec.model.kind == "python":
        return _load_python(spec, base, signature)
    assert path is not None
    if spec.model.kind == "onnx":
        return _load_onnx(path, spec, signature)
    return _load_torch_file(path, spec, signature)


def _load_python(spec: Spec, base: Path, signature: Signature) -> Eager:
    import torch

    from megacompile.models.torchmodules import copy_module

    build = hooks.load(spec.model.reference, base)
    module = hooks.call(f"model '{spec.model.reference}'", build)
    if not isinstance(module, torch.nn.Module):
        raise ModelError(
            what=f"'{spec.model.reference}' returns no model",
            where="model.python",
            expected="a torch.nn.Module",
            got=type(module).__name__,
        )
    module = copy_module(module).eval()
    return Eager(module, signature, bind(module.forward, spec.inputs, "model.python"))


def _load_torch_file(path: Path, spec: Spec, signature: Signature) -> Eager | Scripted:
    import torch

    try:
        if spec.model.kind == "torchscript":
            scripted = torch.jit.load(str(path), map_location="cpu").eval()
            return Scripted(scripted, signature)
        program = torch.export.load(path)
    except Exception as error:
        raise ModelError(
            what=f"the {spec.model.kind} model can't be read",
            where=str(path),
            cause=f"{type(error).__name__}: {str(error).splitlines()[0]}",
            remedy=f"write it again with the installed torch ({torch.__version__})",
        ) from error
    return Eager(program.module(), signature, _exported_binding(program, spec, path))


def _exported_binding(program: Any, spec: Spec, path: Path) -> Binding:
    """An exported program takes exactly the arguments it was exported with: some by position,
    some by keyword."""
    args, kwargs = program.call_spec.in_spec.children()
    keywords = list(kwargs.context or [])
    count = len(args.children())
    names = list(spec.inputs)
    by_position, by_keyword = names[:count], names[count:]
    if len(by_position) != count or sorted(by_keyword) != sorted(keywords):
        raise ModelError(
            what="the inputs don't match what the program was exported with",
            where=str(path),
            got=f"inputs {', '.join(names)}",
            expected=f"{count} by position" + (f", then {', '.join(keywords)}" if keywords else ""),
        )
    return Binding({name: name for name in names}, frozenset(by_position))


def _load_onnx(path: Path, spec: Spec, signature: Signature) -> Onnx:
    import onnx

    from megacompile.models import onnxfile

    model = onnxfile.read(path, weights=False)
    missing = [n for n in onnxfile.data_files(path) if not (path.parent / n).is_file()]
    if missing:
        raise ModelError(
            what=f"the model's data file '{missing[0]}' is missing",
            where=str(path),
            remedy="put it beside the .onnx file",
        )
    fixed = {t.name for t in model.graph.initializer}
    takes = {i.name: i for i in model.graph.input if i.name not in fixed}
    optional = {i.name for i in model.graph.input if i.name in fixed}
    for name, one in spec.inputs.items():
        if name not in takes and name not in optional:
            raise ModelError(
                what=f"the ONNX model has no input '{name}'",
                where=str(path),
                expected=", ".join(takes),
                remedy=did_you_mean(name, takes),
            )
        if not isinstance(one, TensorInput):
            raise ModelError(
                what=f"input '{name}' of an ONNX model must be a tensor", where=str(path)
            )
        if name in takes:
            _check_onnx_input(path, name, one, takes[name].type.tensor_type, onnx)
    lacking = [name for name in takes if name not in spec.inputs]
    if lacking:
        raise ModelError(
            what=f"the ONNX model needs '{lacking[0]}', which the spec lacks",
            where=str(path),
            expected=", ".join(takes),
            remedy=f"add '{lacking[0]}' to inputs",
        )
    return Onnx(path, _with_onnx_outputs(path, model, spec, signature))


def _with_onnx_outputs(path: Path, model: Any, spec: Spec, signature: Signature) -> Signature:
    outputs = [o.name for o in model.graph.output]
    for name in spec.outputs or []:
        if name not in outputs:
            raise ModelError(
                what=f"the ONNX model has no output '{name}'",
                where=str(path),
                expected=", ".join(outputs),
                remedy=did_you_mean(name, outputs),
            )
    if signature.outputs:
        return signature
    # A file has names but no nesting: one output comes back by itself, several by name.
    wanted = list(spec.outputs or outputs)
    structure: dict[str, Any] = {"tensor": wanted[0]}
    if len(wanted) > 1:
        structure = {"dict": {name: {"tensor": name} for name in wanted}}
    return replace(signature, outputs=tuple(wanted), structure=structure)


def _check_onnx_input(path: Path, name: str, spec: TensorInput, tensor: Any, onnx: Any) -> None:
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type).name
    if dtype != spec.dtype:
        raise ModelError(
            what=f"input '{name}' has another dtype in the ONNX model",
            where=str(path),
            expected=dtype,
            got=spec.dtype,
        )
    if not tensor.HasField("shape"):
        return
    dims = [_size(dim) for dim in tensor.shape.dim]
    fits = len(dims) == len(spec.shape) and all(
        not isinstance(d, int) or d == s for d, s in zip(dims, spec.shape, strict=True)
    )
    if not fits:
        raise ModelError(
            what=f"input '{name}' has another shape in the ONNX model",
            where=str(path),
            expected=str(dims),
            got=str(spec.shape),
            remedy="a fixed size in the file can't be a dim of the spec",
        )


def _size(dim: Any) -> int | str:
    """A dimension's number or name; some exporters write an unknown size as -1."""
    if dim.HasField("dim_value") and dim.dim_value >= 0:
        return int(dim.dim_value)
    return dim.dim_param or "?"


def fingerprint(form: Form) -> str:
    """A hash of everything that makes the original's answers what they are."""
    if isinstance(form, Onnx):
        from megacompile.models import onnxfile

        return onnxfile.fingerprint(form.path)
    from megacompile.models.torchmodules import fingerprint as module_fingerprint

    assert isinstance(form, (Eager, Scripted))
    return module_fingerprint(form.module)
