"""The user's model as it came: loaded, tried at its smallest and largest sizes, and recorded.

Everything that can be wrong with a model is found here, before any pass runs: a forward that
fails at an extreme size, answers that are random, buffers or inputs that a call changes.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from megacompile.errors import DataError, ModelError
from megacompile.models import (
    Eager,
    Feeds,
    Form,
    InputSet,
    Onnx,
    Scripted,
    Signature,
    Tolerance,
    base_signature,
    compare,
    examples,
    fingerprint,
    load_arrays,
    load_original,
    rename,
    save_arrays,
    take_apart,
    to_numpy,
    to_torch,
)
from megacompile.spec import Spec, TensorInput
from megacompile.system import hooks

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
    training_hash: str | None = None
    hook_seconds: float = 0.0
    notes: list[str] = field(default_factory=list)
    folder: str = ""

    def signature(self, spec: Spec) -> Signature:
        return base_signature(spec).with_outputs(self.outputs, self.structure, self.output_dtypes)

    def input_sets(self) -> list[InputSet]:
        """All input sets, read from disk: typical sizes first."""
        folder = Path(self.folder)
        return [
            InputSet(
                one["label"],
                load_arrays(folder / f"{one['file']}.feeds.npz"),
                load_arrays(folder / f"{one['file']}.reference.npz"),
                one["real"],
                one["heavy"],
            )
            for one in self.sets
        ]

    def calibration(self) -> Iterator[Feeds]:
        """Calibration samples, read one at a time.

        Raises:
            DataError: the spec has none.
        """
        if not self.calibration_samples:
            raise DataError(
                what="a step asks for calibration data and the spec has none",
                remedy="add data.calibration: {python: FILE.py:NAME}",
            )
        for index in range(self.calibration_samples):
            yield load_arrays(Path(self.folder) / f"calibration-{index}.npz")

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


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
    samples = hooks.call(
        label, lambda: list(islice(iter(produced), source.samples)), leaf=DataError
    )
    if not samples:
        raise DataError(
            what=f"{label} is empty",
            where="data.calibration",
            expected=f"up to {source.samples} dicts of input name to array",
            remedy="return at least one sample",
        )
    checked = []
    for index, sample in enumerate(samples):
        if not isinstance(sample, Mapping):
            raise DataError(
                what=f"sample {index} of {label} is no dict",
                expected="{input name: array}",
                got=type(sample).__name__,
            )
        try:
            checked.append(signature.complete(sample))
        except ModelError as error:
            error.what = f"sample {index} of {label}: {error.what}"
            raise DataError(**error.fields()) from error
        for name, array in checked[-1].items():
            if np.issubdtype(array.dtype, np.floating) and not np.isfinite(array).all():
                raise DataError(
                    what=f"sample {index} of {label} holds NaN or infinity", where=f"input '{name}'"
                )
    return checked


def calibration_hash(spec: Spec, base: Path, signature: Signature) -> str | None:
    """The hash of what the calibration hook yields now, to be held against a stored one."""
    return _hash_samples(calibration_samples(spec, base, signature))


def examine(spec: Spec, base: Path, folder: Path) -> Original:
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
    if fingerprint(form) != before:
        raise ModelError(
            what=f"a call changes the model itself: {_changed_buffers(form)}",
            where=spec.model.reference,
            expected="an inference that leaves weights and buffers alone",
            remedy="expose the state as an input and an output",
        )
    tried = _try_sizes(form, spec)
    _check_repeatable(first, tried[0].reference)
    _check_optional(form, spec)
    training_hash = None
    if spec.train is not None:
        from megacompile.measure.training.inspection import try_plain_step

        assert isinstance(form, Eager)
        training_hash = try_plain_step(form, spec, base)
    for index, sample in enumerate(samples):
        save_arrays(folder / f"calibration-{index}.npz", sample)
        if all(not array.any() for array in sample.values()):
            notes.append(f"calibration sample {index} is all zeros")
    original = Original(
        form=form.name,
        reference=spec.model.reference,
        fingerprint=before,
        parameters=form.parameters(),
        size_bytes=form.size_bytes(),
        outputs=list(signature.outputs),
        structure=dict(signature.structure or {}),
        output_dtypes=list(signature.output_dtypes),
        sets=[],
        calibration_samples=len(samples),
        calibration_hash=_hash_samples(samples),
        training_hash=training_hash,
        notes=notes,
        folder=str(folder),
        hook_seconds=round(hook_seconds, 3),
    )
    tried += [
        InputSet(f"calibration sample {n}", sample, form.run(sample), real=True)
        for n, sample in enumerate(samples[:REAL_SETS])
    ]
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
    broken = found.broken(Tolerance.rounding())
    if broken:
        raise ModelError(
            what="the model gives different answers to the same input",
            cause=broken,
            expected="the same numbers in two runs",
            remedy="remove randomness (dropout with training=True, torch.rand), seed "
            "it, or make the noise an input",
        )


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
            raise ModelError(
                what=f"the model writes into its input '{name}'",
                expected="an inference that leaves its inputs alone",
                remedy=f"start forward with {name} = {name}.clone()",
            )


def _changed_buffers(form: Form) -> str:
    if not isinstance(form, Eager):
        return "its state differs after it"
    from megacompile.models.torchmodules import copy_module

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
            forward = partial(form.module, *args, **kwargs)
            without = hooks.call(f"the model's forward without '{name}'", forward)
        found = map(to_numpy, take_apart(without)[1].values())
        leaves = dict(zip(form.signature.outputs, found, strict=True))
        left_out = InputSet(f"'{name}' left out", {}, leaves)
        broken = compare([left_out], [form.run(feeds)]).broken(Tolerance.rounding())
        if broken:
            raise ModelError(
                what=f"the default of optional input '{name}' does not mean the same "
                "as leaving it out",
                where=f"inputs.{name}.default",
                got=f"{tensor.default:g}",
                cause=broken,
                remedy="choose the neutral value (1 for a mask of ones)",
            )


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
        found.append(
            InputSet(
                f"the {which} sizes",
                feeds,
                _try(form, feeds, which, sizes),
                heavy=elements > HEAVY * typical,
            )
        )
    return found


def _write_set(number: int, one: InputSet, folder: Path) -> dict[str, Any]:
    name = f"set-{number}"
    save_arrays(folder / f"{name}.feeds.npz", one.feeds)
    save_arrays(folder / f"{name}.reference.npz", one.reference)
    return {"label": one.label, "file": name, "real": one.real, "heavy": one.heavy}
