"""The winner on disk: engine, manifest, spec, samples. Data only; every byte is accounted for."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from megacompile import __version__
from megacompile.engines.compiled import CompiledModel
from megacompile.engines.training import TrainedRunner
from megacompile.errors import BundleError, MegacompileError
from megacompile.models import Feeds, InputSet, Signature, compare, load_arrays, save_arrays
from megacompile.plan import Machine, Runner, backend_class
from megacompile.system import (
    cpu_isa,
    disk_error,
    file_sha256,
    installed,
    local_archs,
    thread_budget,
)

MANIFEST = "manifest.json"
ENGINE = "engine"
DEPLOY = "deploy"  # the user's Python steps for serving, as text
SPEC = "spec.json"
SAMPLE_INPUTS, SAMPLE_OUTPUTS = "sample-inputs.npz", "sample-outputs.npz"
SCHEMA = 1
# Int8 products of two machines round alike; float sums differ in their order.
SAMPLE_COSINE = 0.99


@dataclass(frozen=True)
class Contents:
    """What goes into a bundle.

    `outputs` are the outputs' shapes (`shapes.output_shapes`), `hooks` Python files that serve it.
    """

    name: str
    candidate: str
    backend: str
    options: dict[str, Any]
    precision: str
    needs_isa: tuple[str, ...]
    engine: Path
    signature: Signature
    spec: dict[str, Any]
    sample_inputs: Feeds
    sample_outputs: Path
    fingerprint: str
    points: list[dict[str, int]]
    libraries: tuple[str, ...]
    outputs: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    hooks: Sequence[Path] = ()


def write_bundle(contents: Contents, folder: Path, machine: Machine) -> Path:
    """Write a bundle beside its place and swap it in; a bundle that was there stays whole until
    the new one is.

    Raises:
        MegacompileError: the disk is full or the folder can't be written.
    """
    with new_folder(folder) as temporary:
        shutil.copytree(contents.engine, temporary / ENGINE)
        (temporary / SPEC).write_text(json.dumps(contents.spec, indent=2) + "\n")
        save_arrays(temporary / SAMPLE_INPUTS, contents.sample_inputs)
        shutil.copyfile(contents.sample_outputs, temporary / SAMPLE_OUTPUTS)
        for hook in contents.hooks:
            (temporary / DEPLOY).mkdir(exist_ok=True)
            shutil.copyfile(hook, temporary / DEPLOY / hook.name)
        manifest = describe(
            contents.name,
            machine,
            contents.signature,
            contents.fingerprint,
            contents.points,
            contents.libraries,
        )
        manifest["target"]["needs_isa"] = list(contents.needs_isa)
        manifest |= {
            "executed": True,
            "candidate": contents.candidate,
            "backend": contents.backend,
            "options": contents.options,
            "precision": contents.precision,
            "outputs": contents.outputs,
        }
        seal(manifest, temporary)
    return folder


@contextlib.contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """A temporary folder beside a place, swapped in when its content is complete.

    Raises:
        MegacompileError: the disk is full or the folder can't be written.
    """
    temporary = folder.with_name(f".{folder.name}-{uuid.uuid4().hex}")
    try:
        temporary.mkdir(parents=True)
        yield temporary
        _swap(temporary, folder)
    except OSError as error:
        raise disk_error(error, folder) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def describe(
    name: str,
    machine: Machine,
    signature: Signature,
    fingerprint: str,
    points: Sequence[Mapping[str, int]],
    libraries: Sequence[str],
) -> dict[str, Any]:
    """What the manifests of all bundles say."""
    return {
        "schema": SCHEMA,
        "megacompile": __version__,
        "name": name,
        "target": {
            "device": machine.device,
            "threads": machine.threads,
            "arch": list(machine.arch),
            "needs_isa": [],
        },
        "versions": installed([*libraries, "numpy"]),
        "fingerprint": fingerprint,
        "points": list(points),
        "signature": signature.to_dict(),
    }


def seal(manifest: dict[str, Any], folder: Path) -> None:
    """Write the manifest with every file's hash and its own."""
    names = sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())
    manifest["files"] = {
        n: {"bytes": (folder / n).stat().st_size, "sha256": file_sha256(folder / n)} for n in names
    }
    manifest["sha256"] = _own_hash(manifest)
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")


def _own_hash(manifest: dict[str, Any]) -> str:
    content = {key: value for key, value in manifest.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _swap(new: Path, place: Path) -> None:
    old = place.with_name(f".{place.name}-{uuid.uuid4().hex}")
    if place.exists():
        os.rename(place, old)
    os.rename(new, place)
    shutil.rmtree(old, ignore_errors=True)


def read_manifest(folder: Path, check_files: bool = True) -> dict[str, Any]:
    """A bundle's manifest, after all hashes were checked.

    Raises:
        BundleError: no bundle, a missing, unknown or changed file, a newer layout.
    """
    path = folder / MANIFEST
    try:
        manifest: dict[str, Any] = json.loads(path.read_text())
        whole = manifest["sha256"] == _own_hash(manifest)
    except FileNotFoundError as error:
        raise BundleError(
            what="no bundle there",
            where=str(folder),
            expected=f"a {MANIFEST}",
            remedy="name the folder that `megacompile build` wrote, build/NAME",
        ) from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BundleError(
            what="the manifest is damaged",
            where=str(path),
            cause=str(error),
            remedy="build again, or copy the bundle again",
        ) from error
    if not whole:
        raise BundleError(
            what="the manifest was changed after it was written",
            where=str(path),
            expected=manifest["sha256"],
            got=_own_hash(manifest),
            remedy="build again, or copy the bundle again",
        )
    if manifest["schema"] != SCHEMA:
        raise BundleError(
            what="the bundle has another layout",
            where=str(path),
            expected=f"schema {SCHEMA}",
            got=f"schema {manifest['schema']}",
            remedy=f"use the megacompile version that wrote it: {manifest.get('megacompile')}",
        )
    if check_files:
        _check_files(folder, manifest["files"])
    return manifest


def _check_files(folder: Path, files: dict[str, Any]) -> None:
    there = {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()} - {MANIFEST}
    missing, extra = sorted(set(files) - there), sorted(there - set(files))
    if missing:
        raise BundleError(
            what=f"'{missing[0]}' is missing from the bundle",
            where=str(folder),
            expected=f"{len(files)} files",
            got=f"{len(files) - len(missing)}",
            remedy="copy the whole folder, or build again",
        )
    if extra:
        raise BundleError(
            what=f"'{extra[0]}' does not belong to the bundle",
            where=str(folder),
            remedy="remove it, or build again",
        )
    for name, known in files.items():
        got = file_sha256(folder / name)
        if got != known["sha256"]:
            raise BundleError(
                what=f"'{name}' was changed after the bundle was written",
                where=str(folder),
                expected=f"sha256 {known['sha256']}",
                got=f"sha256 {got}",
                remedy="copy the bundle again, or build again",
            )


def here(threads: int | None = None, device: str = "cpu") -> Machine:
    """This machine, with a thread budget from affinity and cgroup unless one is given."""
    return Machine(device, threads or thread_budget(), tuple(cpu_isa()), local_archs())


def load_runner(folder: Path, threads: int | None = None) -> tuple[Runner, Signature]:
    """Check a bundle and load its engine.

    Raises:
        BundleError: damaged, incomplete, for other hardware, or for other library versions.
    """
    manifest = checked_manifest(folder)
    signature = Signature.from_dict(manifest["signature"])
    backend = backend_class(manifest["backend"])(**manifest["options"])
    machine = here(threads, manifest["target"]["device"])
    return backend.load(folder / ENGINE, machine, signature), signature


def checked_manifest(folder: Path) -> dict[str, Any]:
    """A bundle's manifest, after its files and what it needs of this machine were checked.

    Raises:
        BundleError: damaged, incomplete, for other hardware, or for other library versions.
    """
    manifest = read_manifest(folder)
    machine = here(device=manifest["target"]["device"])
    if not manifest.get("executed", True):
        raise BundleError(
            what="the bundle was built for other hardware and never executed",
            where=str(folder),
            got=", ".join(manifest["target"]["arch"]),
            remedy="run `megacompile finish BUNDLE` on the target machine first",
        )
    if machine.absent():
        raise BundleError(
            what="the bundle's engine runs on an NVIDIA GPU",
            where=str(folder),
            got=machine.absent(),
            remedy="load it on the target machine",
        )
    lacking = [name for name in manifest["target"]["needs_isa"] if name not in machine.isa]
    if lacking:
        raise BundleError(
            what="this CPU would not run the engine, or would compute other numbers",
            where=str(folder),
            expected=", ".join(manifest["target"]["needs_isa"]),
            got=f"a CPU without {', '.join(lacking)}",
            remedy="build on this machine: the spec lies in the bundle's spec.json",
        )
    _check_versions(folder, manifest["versions"])
    return manifest


def _check_versions(folder: Path, versions: dict[str, str]) -> None:
    found = installed(versions)
    for name, built in versions.items():
        if name not in found:
            raise BundleError(
                what=f"the bundle needs '{name}', which is not installed",
                where=str(folder),
                expected=f"{name} {built}",
                remedy=f"pip install '{name}=={built.split('+')[0]}'",
            )
        # Compiled torch packages and programs are tied to torch's minor version.
        if name == "torch" and found[name].split(".")[:2] != built.split(".")[:2]:
            raise BundleError(
                what="the engine was compiled for another torch",
                where=str(folder),
                expected=f"torch {built}",
                got=f"torch {found[name]}",
                remedy="install that version, or build again",
            )


def load(bundle: str | Path, threads: int | None = None) -> Any:
    """Load a bundle: a `CompiledModel`, a callable with the original's inputs and outputs; of a
    training bundle the `torch.nn.Module` itself, in evaluation mode (its step is
    `megacompile.training_step`).

    Args:
        bundle: the folder, e.g. "build/minilm".
        threads: number of threads; default: what this process's affinity and cgroup allow.

    Raises:
        BundleError: damaged, incomplete, for other hardware, or for other library versions.
    """
    runner, signature = load_runner(Path(bundle), threads)
    if isinstance(runner, TrainedRunner):
        return runner.form.module
    return CompiledModel(runner.run, signature)


def load_compiled(bundle: str | Path, threads: int | None = None) -> CompiledModel:
    """Any bundle as a callable on arrays.

    Raises:
        BundleError: as in `load`.
    """
    runner, signature = load_runner(Path(bundle), threads)
    return CompiledModel(runner.run, signature)


def check_samples(folder: Path, run: Callable[[Feeds], Feeds]) -> float:
    """Run the bundle's own samples; returns the least cosine to the stored answers.

    Raises:
        BundleError: this machine computes something else than the one that built it.
    """
    stored = InputSet(
        "the bundle's samples",
        load_arrays(folder / SAMPLE_INPUTS),
        load_arrays(folder / SAMPLE_OUTPUTS),
    )
    try:
        found = compare([stored], [run(stored.feeds)])
    except MegacompileError:
        raise
    except Exception as error:
        raise BundleError(
            what="the engine fails on the bundle's own samples",
            where=str(folder),
            cause=f"{type(error).__name__}: {error}",
        ) from error
    if found.failures or found.cosine_min < SAMPLE_COSINE:
        raise BundleError(
            what="this machine computes something else than the one that built it",
            where=str(folder),
            expected=f"cosine of at least {SAMPLE_COSINE} on the stored samples",
            got=found.failures[0] if found.failures else f"{found.cosine_min:.4f}",
            remedy="build on this machine",
        )
    return found.cosine_min
