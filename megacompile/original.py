"""The user's model as it came: loaded, tried at its smallest and largest sizes, and recorded.

Everything that can be wrong with a model is found here, before any pass runs: a forward that
fails at an extreme size, answers that are random, buffers or inputs that a call changes.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from megacompile import examples, hooks
from megacompile.compare import InputSet, compare
from megacompile.errors import DataError, ModelError, SpecError, did_you_mean
from megacompile.forms import Eager, Form, Onnx, Scripted
from megacompile.passbase import Effect
from megacompile.signature import Binding, Signature, bind
from megacompile.spec.models import Spec, TensorInput
from megacompile.structure import rename, take_apart
from megacompile.tensors import Feeds, load_arrays, save_arrays, to_numpy, to_torch

REAL_SETS = 8
HEAVY = 4  # a set is heavy at this many times the elements of the typical one
RECORD = "original.json"
Sizes = Mapping[str, int]


@dataclass
class Original:
    """What is known of the original: plain data, so that it travels and can be stored.

    `folder` holds input sets with the original's answers, and calibration samples.
    `hook_seconds` is what the user's own Python took: building the model, yielding samples.
    """

    form: str
    reference: str
    fingerprint: str
    parameters: int
    size_bytes: int
    outputs: list[str]
    structure: dict[str, Any]
    output_dtypes: list[str]
    sets: list[dict[str, Any]]
    calibration_samples: int = 0
    calibration_hash: str | None = None
    hook_seconds: float = 0.0
    notes: list[str] = field(default_factory=list)
    folder: str = ""

    def signature(self, spec: Spec) -> Signature:
        return base_signature(spec).with_outputs(self.outputs, self.structure, self.output_dtypes)

    def input_sets(self) -> list[InputSet]:
        """All input sets, read from disk: typical sizes first."""
        folder = Path(self.folder)
        return [InputSet(one["label"], load_arrays(folder / f"{one['file']}.feeds.npz"),
                         load_arrays(folder / f"{one['file']}.reference.npz"), one["real"],
                         one["heavy"])
                for one in self.sets]  # fmt: skip

    def calibration(self) -> Iterator[Feeds]:
        """Calibration samples, read one at a time.

        Raises:
            DataError: the spec has none.
        """
        if not self.calibration_samples:
            raise DataError(what="a step asks for calibration data and the spec has none",
                            remedy="add data.calibration: {python: FILE.py:NAME}")  # fmt: skip
        for index in range(self.calibration_samples):
            yield load_arrays(Path(self.folder) / f"calibration-{index}.npz")

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


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
            raise SpecError(what=f"the Python package '{name}' is not installed",
                            where=f"model.{source.kind}", got=reference,
                            remedy=f"pip install {name.replace('_', '-')}")  # fmt: skip
        path = Path(found.submodule_search_locations[0]) / inner
    else:
        path = (base / reference).resolve()
    if not path.is_file():
        near = did_you_mean(path.name, [p.name for p in path.parent.glob("*")])
        raise SpecError(what=f"no such file '{reference}'", where=f"model.{source.kind}",
                        expected=f"a file in {path.parent}", remedy=near)  # fmt: skip
    return path


def load_original(spec: Spec, base: Path, signature: Signature | None = None) -> Form:
    """The model as a form, in evaluation mode; what the user's code returned stays untouched.

    Raises:
        SpecError, ModelError: it can't be found, built, read, or called with the spec's inputs.
    """
    signature = signature or base_signature(spec)
    path = source_path(spec, base)
    kind = spec.model.kind
    if kind == "onnx":
        assert path is not None
        return _load_onnx(path, spec, signature)
    import torch

    from megacompile.torchmodules import copy_module

    if kind == "python":
        build = hooks.load(spec.model.reference, base)
        module = hooks.call(f"model '{spec.model.reference}'", build)
        if not isinstance(module, torch.nn.Module):
            raise ModelError(what=f"'{spec.model.reference}' returns no model",
                             where="model.python", expected="a torch.nn.Module",
                             got=type(module).__name__)  # fmt: skip
        module = copy_module(module).eval()
    else:
        assert path is not None
        try:
            if kind == "torchscript":
                scripted = torch.jit.load(str(path), map_location="cpu").eval()
                return Scripted(scripted, signature)
            program = torch.export.load(path)
        except Exception as error:
            raise ModelError(what=f"the {kind} model can't be read", where=str(path),
                             cause=f"{type(error).__name__}: {str(error).splitlines()[0]}",
                             remedy="write it again with the installed torch "
                             f"({torch.__version__})") from error  # fmt: skip
    if kind == "exported":
        return Eager(program.module(), signature, _exported_binding(program, spec, path))
    return Eager(module, signature, bind(module.forward, spec.inputs, "model.python"))


def _exported_binding(program: Any, spec: Spec, path: Path | None) -> Binding:
    """An exported program takes exactly the arguments it was exported with: some by position,
    some by keyword."""
    args, kwargs = program.call_spec.in_spec.children()
    keywords = list(kwargs.context or [])
    count = len(args.children())
    names = list(spec.inputs)
    by_position, by_keyword = names[:count], names[count:]
    if len(by_position) != count or sorted(by_keyword) != sorted(keywords):
        raise ModelError(what="the inputs don't match what the program was exported with",
                         where=str(path), got=f"inputs {', '.join(names)}",
                         expected=f"{count} by position"
                         + (f", then {', '.join(keywords)}" if keywords else ""))  # fmt: skip
    return Binding({name: name for name in names}, frozenset(by_position))


def _load_onnx(path: Path, spec: Spec, signature: Signature) -> Onnx:
    import onnx

    from megacompile import onnxfile

    model = onnxfile.read(path, weights=False)
    missing = [n for n in onnxfile.data_files(path) if not (path.parent / n).is_file()]
    if missing:
        raise ModelError(what=f"the model's data file '{missing[0]}' is missing", where=str(path),
                         remedy="put it beside the .onnx file")  # fmt: skip
    fixed = {t.name for t in model.graph.initializer}
    takes = {i.name: i for i in model.graph.input if i.name not in fixed}
    optional = {i.name for i in model.graph.input if i.name in fixed}
    for name, one in spec.inputs.items():
        if name not in takes and name not in optional:
            raise ModelError(what=f"the ONNX model has no input '{name}'", where=str(path),
                             expected=", ".join(takes),
                             remedy=did_you_mean(name, takes))  # fmt: skip
        if not isinstance(one, TensorInput):
            raise ModelError(what=f"input '{name}' of an ONNX model must be a tensor",
                             where=str(path))  # fmt: skip
        if name in takes:
            _check_onnx_input(path, name, one, takes[name].type.tensor_type, onnx)
    lacking = [name for name in takes if name not in spec.inputs]
    if lacking:
        raise ModelError(what=f"the ONNX model needs '{lacking[0]}', which the spec lacks",
                         where=str(path), expected=", ".join(takes),
                         remedy=f"add '{lacking[0]}' to inputs")  # fmt: skip
    outputs = [o.name for o in model.graph.output]
    for name in spec.outputs or []:
        if name not in outputs:
            raise ModelError(what=f"the ONNX model has no output '{name}'", where=str(path),
                             expected=", ".join(outputs),
                             remedy=did_you_mean(name, outputs))  # fmt: skip
    wanted = list(spec.outputs or outputs)
    if not signature.outputs:
        # A file has names but no nesting: one output comes back by itself, several by name.
        structure: dict[str, Any] = {"tensor": wanted[0]}
        if len(wanted) > 1:
            structure = {"dict": {name: {"tensor": name} for name in wanted}}
        signature = replace(signature, outputs=tuple(wanted), structure=structure)
    return Onnx(path, signature)


def _check_onnx_input(path: Path, name: str, spec: TensorInput, tensor: Any, onnx: Any) -> None:
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type).name
    if dtype != spec.dtype:
        raise ModelError(what=f"input '{name}' has another dtype in the ONNX model",
                         where=str(path), expected=dtype, got=spec.dtype)  # fmt: skip
    if not tensor.HasField("shape"):
        return
    dims = [d.dim_value if d.HasField("dim_value") else d.dim_param or "?"
            for d in tensor.shape.dim]  # fmt: skip
    fits = len(dims) == len(spec.shape) and all(
        not isinstance(d, int) or d == s for d, s in zip(dims, spec.shape, strict=True)
    )
    if not fits:
        raise ModelError(what=f"input '{name}' has another shape in the ONNX model",
                         where=str(path), expected=str(dims), got=str(spec.shape),
                         remedy="a fixed size in the file can't be a dim of the spec")  # fmt: skip


def fingerprint(form: Form) -> str:
    """A hash of everything that makes the original's answers what they are."""
    if isinstance(form, Onnx):
        from megacompile import onnxfile

        return onnxfile.fingerprint(form.path)
    from megacompile.torchmodules import fingerprint as module_fingerprint

    assert isinstance(form, (Eager, Scripted))
    return module_fingerprint(form.module)


def calibration_samples(spec: Spec, base: Path, signature: Signature) -> list[Feeds]:
    """The samples of the user's calibration hook, checked against the inputs.

    Raises:
        DataError: the hook raises, yields nothing, or yields something else than inputs.
    """
    source = spec.data.calibration
    if source is None:
        return []
    hook = hooks.load(source.python, base)
    label = f"data.calibration '{source.python}'"
    produced = hooks.call(label, hook, leaf=DataError) if callable(hook) else hook
    samples = hooks.call(label, lambda: list(islice(iter(produced), source.samples)),
                         leaf=DataError)  # fmt: skip
    if not samples:
        raise DataError(what=f"{label} is empty", where="data.calibration",
                        expected=f"up to {source.samples} dicts of input name to array",
                        remedy="return at least one sample")  # fmt: skip
    checked = []
    for index, sample in enumerate(samples):
        if not isinstance(sample, Mapping):
            raise DataError(what=f"sample {index} of {label} is no dict",
                            expected="{input name: array}", got=type(sample).__name__)  # fmt: skip
        try:
            checked.append(signature.complete(sample))
        except ModelError as error:
            error.what = f"sample {index} of {label}: {error.what}"
            raise DataError(**error.fields()) from error
        for name, array in checked[-1].items():
            if np.issubdtype(array.dtype, np.floating) and not np.isfinite(array).all():
                raise DataError(what=f"sample {index} of {label} holds NaN or infinity",
                                where=f"input '{name}'")  # fmt: skip
    return checked


def calibration_hash(spec: Spec, base: Path, signature: Signature) -> str | None:
    """The hash of what the calibration hook yields now, to be held against a stored one."""
    return _hash_samples(calibration_samples(spec, base, signature))


def inspect(spec: Spec, base: Path, folder: Path) -> Original:
    """Load, try, and record the original; input sets are written into `folder`.

    Raises:
        MegacompileError: whatever keeps the model from being compiled and compared.
    """
    start = time.perf_counter()
    form = load_original(spec, base)
    samples = calibration_samples(spec, base, form.signature)
    hook_seconds = time.perf_counter() - start
    notes: list[str] = []
    before = fingerprint(form)
    form, first = _learn_outputs(form, spec)
    signature = form.signature
    _check_inputs_untouched(form)
    tried = _try_sizes(form, spec)
    _check_repeatable(first, tried[0].reference)
    if fingerprint(form) != before:
        raise ModelError(what=f"a call changes the model itself: {_changed_buffers(form)}",
                         where=spec.model.reference,
                         expected="an inference that leaves weights and buffers alone",
                         remedy="expose the state as an input and an output")  # fmt: skip
    _check_optional(form, spec)
    for index, sample in enumerate(samples):
        save_arrays(folder / f"calibration-{index}.npz", sample)
        if all(not array.any() for array in sample.values()):
            notes.append(f"calibration sample {index} is all zeros")
    original = Original(
        form=form.name, reference=spec.model.reference, fingerprint=before,
        parameters=form.parameters(), size_bytes=form.size_bytes(),
        outputs=list(signature.outputs), structure=dict(signature.structure or {}),
        output_dtypes=list(signature.output_dtypes), sets=[],
        calibration_samples=len(samples), calibration_hash=_hash_samples(samples),
        notes=notes, folder=str(folder), hook_seconds=round(hook_seconds, 3),
    )  # fmt: skip
    tried += [InputSet(f"calibration sample {n}", sample, form.run(sample), real=True)
              for n, sample in enumerate(samples[:REAL_SETS])]  # fmt: skip
    original.sets = [_write_set(number, one, folder) for number, one in enumerate(tried)]
    (folder / RECORD).write_text(json.dumps(original.to_dict()))
    return original


def read_record(folder: Path) -> Original:
    """What `inspect` wrote into a folder."""
    return Original(**{**json.loads((folder / RECORD).read_text()), "folder": str(folder)})


def _learn_outputs(form: Form, spec: Spec) -> tuple[Form, Feeds]:
    """Run once at the typical sizes; names, nesting and dtypes of the outputs are kept."""
    signature = form.signature
    sizes = examples.sizes(signature, "typical")
    feeds = examples.make(signature, sizes, spec.seed)
    if isinstance(form, Onnx):
        values = _try(form, feeds, "typical", sizes)
    else:
        call = form.call if isinstance(form, Eager) else _script_call(form)
        value = _guarded(lambda: call(feeds), "typical", sizes)
        structure, found = take_apart(value)
        structure, names = rename(structure, list(found), spec.outputs, "outputs")
        values = {names[name]: to_numpy(tensor) for name, tensor in found.items()}
        signature = replace(signature, structure=structure)
    if not values:
        raise ModelError(what="the model returns no tensor", where=spec.model.reference)
    dtypes = [array.dtype.name for array in values.values()]
    signature = signature.with_outputs(list(values), signature.structure or {}, dtypes)
    form.signature = signature
    return form, values


def _script_call(form: Form) -> Any:
    import torch

    assert isinstance(form, Scripted)

    def call(feeds: Feeds) -> Any:
        with torch.no_grad():
            return form.module(*[to_torch(feeds[name]) for name in form.signature.tensors])

    return call


def _guarded(call: Any, which: str, sizes: Sizes) -> Any:
    shown = ", ".join(f"{name}={size}" for name, size in sizes.items())
    label = (
        f"the model's forward at the {which} sizes ({shown})" if shown else "the model's forward"
    )
    return hooks.call(label, call)


def _try(form: Form, feeds: Feeds, which: str, sizes: Sizes) -> Feeds:
    result: Feeds = _guarded(lambda: form.run(feeds), which, sizes)
    return result


def _check_repeatable(first: Feeds, second: Feeds) -> None:
    found = compare([InputSet("the typical sizes", {}, first)], [second])
    broken = found.broken(Effect.EXACT)
    if broken:
        raise ModelError(what="the model gives different answers to the same input",
                         cause=broken, expected="the same numbers in two runs",
                         remedy="remove randomness (dropout with training=True, torch.rand), seed "
                         "it, or make the noise an input")  # fmt: skip


def _check_inputs_untouched(form: Form) -> None:
    if not isinstance(form, Eager):
        return
    import torch

    feeds = examples.make(form.signature, examples.sizes(form.signature, "typical"))
    given = {name: to_torch(array) for name, array in feeds.items()}
    args, kwargs = form.binding.split(form.signature.arguments(given.__getitem__))
    with torch.no_grad():
        form.module(*args, **kwargs)
    for name, tensor in given.items():
        if not np.array_equal(to_numpy(tensor), feeds[name], equal_nan=tensor.is_floating_point()):
            raise ModelError(what=f"the model writes into its input '{name}'",
                             expected="an inference that leaves its inputs alone",
                             remedy=f"start forward with {name} = {name}.clone()")  # fmt: skip


def _changed_buffers(form: Form) -> str:
    if not isinstance(form, Eager):
        return "its state differs after it"
    from megacompile.torchmodules import copy_module

    module = copy_module(form.module)
    before = {n: b.detach().clone() for n, b in module.named_buffers()}
    probe = form.with_module(module)
    probe.run(examples.make(form.signature, examples.sizes(form.signature, "typical")))
    changed = [n for n, b in module.named_buffers() if not bool((b == before[n]).all())]
    return f"buffer '{changed[0]}' is mutated" if changed else "an attribute changes"


def _check_optional(form: Form, spec: Spec) -> None:
    """An optional input's default must mean the same as leaving it out."""
    optional = [n for n, s in spec.inputs.items() if isinstance(s, TensorInput) and s.optional]
    if not optional or not isinstance(form, Eager):
        return
    import torch

    for name in optional:
        feeds = examples.make(form.signature, examples.sizes(form.signature, "typical"), spec.seed)
        tensor = spec.inputs[name]
        assert isinstance(tensor, TensorInput)
        assert tensor.default is not None
        feeds[name] = np.full_like(feeds[name], tensor.default)
        arguments = form.signature.arguments(lambda leaf: to_torch(feeds[leaf]))  # noqa: B023
        args, kwargs = form.binding.split({k: v for k, v in arguments.items() if k != name})
        with torch.no_grad():
            without = hooks.call(f"the model's forward without '{name}'",
                                 lambda: form.module(*args, **kwargs))  # fmt: skip # noqa: B023
        found = map(to_numpy, take_apart(without)[1].values())
        leaves = dict(zip(form.signature.outputs, found, strict=True))
        broken = compare([InputSet(f"'{name}' left out", {}, leaves)],
                         [form.run(feeds)]).broken(Effect.EXACT)  # fmt: skip
        if broken:
            raise ModelError(what=f"the default of optional input '{name}' does not mean the same "
                             "as leaving it out", where=f"inputs.{name}.default",
                             got=f"{tensor.default:g}", cause=broken,
                             remedy="choose the neutral value (1 for a mask of ones)")  # fmt: skip


def _hash_samples(samples: list[Feeds]) -> str | None:
    if not samples:
        return None
    digest = hashlib.sha256()
    for sample in samples:
        for name, array in sample.items():
            digest.update(f"{name} {array.dtype} {array.shape}".encode())
            digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _try_sizes(form: Form, spec: Spec) -> list[InputSet]:
    """Run the original at its typical, smallest, largest and odd sizes.

    Raises:
        ModelError: its forward fails at one of them.
    """
    signature = form.signature
    found: list[InputSet] = []
    seen: list[Sizes] = []
    for which in ("typical", "min", "max", "odd"):
        sizes = examples.sizes(signature, which)
        if sizes in seen and which != "odd":
            continue
        seen.append(sizes)
        # Another seed for each set: with fixed sizes, they still differ in their values.
        feeds = examples.make(signature, sizes, spec.seed + len(found))
        elements = sum(array.size for array in feeds.values())
        typical = sum(array.size for array in found[0].feeds.values()) if found else elements
        found.append(InputSet(f"the {which} sizes", feeds, _try(form, feeds, which, sizes),
                              heavy=elements > HEAVY * typical))  # fmt: skip
    return found


def _write_set(number: int, one: InputSet, folder: Path) -> dict[str, Any]:
    name = f"set-{number}"
    save_arrays(folder / f"{name}.feeds.npz", one.feeds)
    save_arrays(folder / f"{name}.reference.npz", one.reference)
    return {"label": one.label, "file": name, "real": one.real, "heavy": one.heavy}
