"""The user's model as it came: loaded, tried at its smallest and largest sizes, and recorded.

Everything that can be wrong with a model is found here, before any pass runs: a forward that
fails at an extreme size, answers that are random, buffers or inputs that a call changes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from megacompile.errors import DataError, ModelError
from megacompile.measure.calibration import calibration_samples, hash_of
from megacompile.measure.sanity_checks import (
    changed_state,
    check_inputs_untouched,
    check_optional,
    check_repeatable,
)
from megacompile.models import (
    Eager,
    Feeds,
    Form,
    InputSet,
    Onnx,
    Scripted,
    Signature,
    base_signature,
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
from megacompile.spec import Spec
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
        """How it is called, and what it gives."""
        return base_signature(spec).with_outputs(self.outputs, self.structure, self.output_dtypes)

    def input_sets(self) -> list[InputSet]:
        """All input sets, read from disk: typical sizes first."""
        return [_read_set(one, Path(self.folder)) for one in self.sets]

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
        """As JSON; `Original(**data)` takes it back."""
        return asdict(self)


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
    check_inputs_untouched(form)
    if fingerprint(form) != before:
        raise ModelError(
            what=f"a call changes the model itself: {changed_state(form)}",
            where=spec.model.reference,
            expected="an inference that leaves weights and buffers alone",
            remedy="expose the state as an input and an output",
        )
    tried = _try_sizes(form, spec)
    check_repeatable(first, tried[0].reference)
    check_optional(form, spec)
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
        calibration_hash=hash_of(samples),
        training_hash=training_hash,
        notes=notes,
        folder=str(folder),
        hook_seconds=round(hook_seconds, 3),
    )
    for index, sample in enumerate(samples[:REAL_SETS]):
        label = f"calibration sample {index}"
        tried.append(InputSet(label, sample, form.run(sample), real=True))
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
    label = "the model's forward"
    if sizes:
        shown = ", ".join(f"{name}={size}" for name, size in sizes.items())
        label += f" at the {which} sizes ({shown})"
    return hooks.call(label, call)


def _try(form: Form, feeds: Feeds, which: str, sizes: Sizes) -> Feeds:
    result: Feeds = _guarded(lambda: form.run(feeds), which, sizes)
    return result


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
        typical = found[0].feeds if found else feeds
        heavy = _elements(feeds) > HEAVY * _elements(typical)
        answers = _try(form, feeds, which, sizes)
        found.append(InputSet(f"the {which} sizes", feeds, answers, heavy=heavy))
    return found


def _elements(feeds: Feeds) -> int:
    return sum(array.size for array in feeds.values())


def _write_set(number: int, one: InputSet, folder: Path) -> dict[str, Any]:
    name = f"set-{number}"
    save_arrays(folder / f"{name}.feeds.npz", one.feeds)
    save_arrays(folder / f"{name}.reference.npz", one.reference)
    return {"label": one.label, "file": name, "real": one.real, "heavy": one.heavy}


def _read_set(record: Mapping[str, Any], folder: Path) -> InputSet:
    feeds = load_arrays(folder / f"{record['file']}.feeds.npz")
    reference = load_arrays(folder / f"{record['file']}.reference.npz")
    return InputSet(record["label"], feeds, reference, record["real"], record["heavy"])
