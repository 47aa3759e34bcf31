"""`megacompile export-triton`: a bundle becomes a version of a model in a repository."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from megacompile.deploy.triton import config as configs
from megacompile.deploy.triton import tuning
from megacompile.deploy.triton.config import Served
from megacompile.deploy.triton.ports import Interface, Port, interface
from megacompile.deploy.triton.repository import MODEL_PY, Model, add_version
from megacompile.deploy.triton.serving import BUNDLE, HOOKS
from megacompile.deploy.triton.tuning import Measurement, Tuning
from megacompile.engines import DEPLOY, ENGINE, SAMPLE_INPUTS, SPEC, load_runner, read_manifest
from megacompile.errors import BundleError
from megacompile.models import Feeds, Signature, load_arrays
from megacompile.spec import Port as DeclaredPort
from megacompile.spec import Triton

Say = Callable[[str], None]


@dataclass(frozen=True)
class Native:
    """The server's own backend for one kind of engine. `numbered`: tensors are told apart by a
    number at the end of their names (Triton's PyTorch backend)."""

    backend: str
    platform: str
    filename: str
    numbered: bool = False


NATIVE = {
    "onnxruntime": Native("onnxruntime", "onnxruntime_onnx", "model.onnx"),
    "openvino": Native("openvino", "", "model.xml"),
    "torchscript": Native("pytorch", "pytorch_libtorch", "model.pt", numbered=True),
    "aotinductor": Native("pytorch", "torch_aoti", "model.pt2", numbered=True),
    "tensorrt": Native("tensorrt", "tensorrt_plan", ""),
}


@dataclass
class Exported:
    """What was written: the name clients call, the version, and what was measured and decided."""

    name: str
    version: int
    models: list[str]
    tuning: Tuning | None
    curve: list[Measurement] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass
class _Bundle:
    folder: Path
    manifest: Mapping[str, Any]
    signature: Signature
    wanted: Triton
    interface: Interface

    @property
    def gpu(self) -> bool:
        return bool(self.manifest["target"]["device"] == "cuda")

    @property
    def max_batch_size(self) -> int:
        if self.interface.batch is None:
            return 0
        given = self.wanted.max_batch_size
        return self.interface.largest if given == "auto" else given


def export_triton(folder: Path, repository: Path, say: Say, new_config: bool = False) -> Exported:
    """Write a bundle into a model repository as the next version of its model.

    Raises:
        BundleError: the bundle is damaged or was never executed, or its tensors and the wanted
            settings don't fit together; the tensor is named.
    """
    bundle = _open(folder)
    curve: list[Measurement] = []
    tuned = _tune(bundle, say, curve)
    name = bundle.wanted.model_name or str(bundle.manifest["name"])
    models = _models(bundle, name, tuned)
    version, notes = add_version(repository, models, new_config)
    return Exported(name, version, [one.name for one in models], tuned, curve, notes)


def _open(folder: Path) -> _Bundle:
    manifest = read_manifest(folder)
    if not manifest.get("executed", True):
        raise BundleError(
            what="the bundle was never executed, so it is not ready to be served",
            where=str(folder),
            got=", ".join(manifest["target"]["arch"]),
            remedy="run `megacompile finish BUNDLE` on the target machine first",
        )
    if "outputs" not in manifest:
        raise BundleError(
            what="the bundle doesn't say its outputs' shapes",
            where=str(folder),
            got=f"written by megacompile {manifest['megacompile']}",
            remedy="build it again",
        )
    spec = json.loads((folder / SPEC).read_text())
    wanted = Triton.model_validate((spec.get("deploy") or {}).get("triton") or {})
    signature = Signature.from_dict(manifest["signature"])
    given = wanted.max_batch_size
    found = interface(signature, manifest["outputs"], None if given == "auto" else given > 0)
    _check_sizes(wanted, found, str(folder))
    return _Bundle(folder, manifest, signature, wanted, found)


def _check_sizes(wanted: Triton, found: Interface, where: str) -> None:
    """Sizes that the engine was not built for."""
    largest = found.largest
    if found.batch is not None and wanted.max_batch_size != "auto":
        if wanted.max_batch_size > largest:
            raise BundleError(
                what=f"max_batch_size is beyond what dim '{found.batch}' allows",
                where=where,
                expected=f"at most {largest}",
                got=str(wanted.max_batch_size),
                remedy=f"raise dims.{found.batch}.max and build again",
            )
        largest = wanted.max_batch_size
    if wanted.preferred_batch_sizes == "auto":
        return
    beyond = [size for size in wanted.preferred_batch_sizes if size > largest]
    if beyond:
        name = found.inputs[0].name
        raise BundleError(
            what=f"preferred batch size {beyond[0]} is beyond what input '{name}' takes",
            where=where,
            expected=f"at most {largest}",
            got=str(beyond[0]),
            remedy="lower preferred_batch_sizes, or raise the batch dim's max and build again",
        )


def _tune(bundle: _Bundle, say: Say, curve: list[Measurement]) -> Tuning | None:
    """Batch sizes and delay: as written, or from this machine's batch curve."""
    wanted, batch = bundle.wanted, bundle.interface.batch
    if batch is None or not wanted.dynamic_batching:
        return None
    sizes, delay = wanted.preferred_batch_sizes, wanted.max_queue_delay_us
    chosen = Tuning((), 0)
    if sizes == "auto" or delay == "auto":
        say(f"measuring the bundle at batches of 1 to {bundle.max_batch_size}")
        runner, signature = load_runner(bundle.folder)
        try:
            curve += tuning.measure_curve(runner.run, signature, batch, bundle.max_batch_size)
        finally:
            runner.close()
        chosen = tuning.choose(curve)
    return Tuning(
        chosen.preferred if sizes == "auto" else tuple(sizes),
        chosen.delay_us if delay == "auto" else delay,
    )


def _models(bundle: _Bundle, name: str, tuned: Tuning | None) -> list[Model]:
    """The model itself, and around it, where the spec has them, the steps and their ensemble."""
    wanted = bundle.wanted
    before, after = wanted.preprocess, wanted.postprocess
    if before is None and after is None:
        return [_engine(bundle, name, tuned)]
    engine = _engine(bundle, f"{name}_model", tuned)
    inputs, outputs = bundle.interface.inputs, bundle.interface.outputs
    steps = [(engine.name, inputs, outputs)]
    models = [engine]
    if before is not None:
        ports = _ports(before.inputs)
        steps.insert(0, (f"{name}_preprocess", ports, inputs))
        models.insert(0, _hook(bundle, f"{name}_preprocess", before.python, ports, inputs))
        inputs = ports
    if after is not None:
        ports = _ports(after.outputs)
        steps.append((f"{name}_postprocess", outputs, ports))
        models.append(_hook(bundle, f"{name}_postprocess", after.python, outputs, ports))
        outputs = ports
    config = configs.ensemble_config(name, steps, inputs, outputs, bundle.max_batch_size, wanted)
    return [*models, Model(name, config, lambda folder: None)]


def _ports(given: Mapping[str, DeclaredPort]) -> tuple[Port, ...]:
    return tuple(Port(name, one.dtype, tuple(one.shape)) for name, one in given.items())


def _engine(bundle: _Bundle, name: str, tuned: Tuning | None) -> Model:
    wanted, backend = bundle.wanted, str(bundle.manifest["backend"])
    served = Served(name, "python", bundle.max_batch_size, bundle.gpu)
    shown = bundle.interface

    def fill(folder: Path) -> None:
        if wanted.platform == "native":
            shutil.copytree(bundle.folder / ENGINE, folder, dirs_exist_ok=True)
        else:
            _python_version(bundle, folder)

    if wanted.platform == "native":
        native = _native(bundle, backend)
        if native.numbered:
            inputs, outputs = _numbered(shown.inputs), _numbered(shown.outputs)
            shown = dataclasses.replace(shown, inputs=inputs, outputs=outputs)
        served = dataclasses.replace(
            served,
            backend=native.backend,
            platform=native.platform,
            filename=native.filename,
            filenames_by_arch=_plans(bundle) if backend == "tensorrt" else {},
        )
    config = configs.model_config(served, shown, wanted, tuned)
    model = Model(name, config, fill)
    if wanted.warmup:
        _warm_up(bundle, model, shown, tuned)
    return model


def _python_version(bundle: _Bundle, folder: Path) -> None:
    (folder / "model.py").write_text(MODEL_PY.format(role="Bundle"), encoding="utf-8")
    shutil.copytree(bundle.folder, folder / BUNDLE)


def _native(bundle: _Bundle, backend: str) -> Native:
    found = NATIVE.get(backend)
    if found is None:
        raise BundleError(
            what=f"Triton has no backend of its own for '{backend}'",
            where=str(bundle.folder),
            expected=", ".join(NATIVE),
            got=backend,
            remedy="write platform: python, which runs any bundle",
        )
    if backend == "tensorrt":
        record = json.loads((bundle.folder / ENGINE / "tensorrt.json").read_text())
        if record["flavour"] != "tensorrt":
            raise BundleError(
                what=f"Triton's TensorRT backend does not load engines of {record['flavour']}",
                where=str(bundle.folder),
                remedy="write platform: python, or build with flavour tensorrt on "
                "the target machine",
            )
    return found


def _plans(bundle: _Bundle) -> dict[str, str]:
    """Triton picks an engine by compute capability, written 8.9 for sm_89."""
    record = json.loads((bundle.folder / ENGINE / "tensorrt.json").read_text())
    return {f"{arch[3:-1]}.{arch[-1]}": f"{arch}.engine" for arch in record["archs"]}


def _numbered(ports: tuple[Port, ...]) -> tuple[Port, ...]:
    found = []
    for index, port in enumerate(ports):
        found.append(dataclasses.replace(port, name=f"{port.name}__{index}"))
    return tuple(found)


def _warm_up(bundle: _Bundle, model: Model, shown: Interface, tuned: Tuning | None) -> None:
    """One sample of the bundle, alone and at every preferred size."""
    samples: Feeds = load_arrays(bundle.folder / SAMPLE_INPUTS)
    batched = bundle.interface.batch is not None
    files: dict[str, str] = {}
    shapes: dict[str, list[int]] = {}
    for port, array in zip(shown.inputs, samples.values(), strict=True):
        one = array[0] if batched else array
        files[port.name] = f"input-{len(files)}"
        shapes[port.name] = list(one.shape)
        model.warmup[files[port.name]] = np.ascontiguousarray(one).tobytes()
    sizes = [1, *(tuned.preferred if tuned is not None else ())]
    configs.add_warmup(model.config, shown, files, shapes, sizes)


def _hook(
    bundle: _Bundle, name: str, reference: str, takes: tuple[Port, ...], gives: tuple[Port, ...]
) -> Model:
    """A Python step of the user's as a model of its own. Nobody waits for others there, but what
    has gathered is handed over in one go."""
    served = Served(name, "python", bundle.max_batch_size, False, parameters={"hook": reference})
    shape = Interface(takes, gives, bundle.interface.batch, bundle.interface.largest)
    together = Tuning((), 0) if bundle.wanted.dynamic_batching else None
    config = configs.model_config(served, shape, bundle.wanted, together)

    def fill(folder: Path) -> None:
        (folder / "model.py").write_text(MODEL_PY.format(role="Hook"), encoding="utf-8")
        shutil.copytree(bundle.folder / DEPLOY, folder / HOOKS)

    return Model(name, config, fill)
