"""A bundle of engines for other hardware: all candidates, their ONNX files, and what they are to
be held against. `megacompile finish` on the target makes an ordinary bundle of it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from megacompile.engines.bundle import DEPLOY, SPEC, new_folder
from megacompile.engines.loading import here
from megacompile.engines.manifest import describe, read_manifest, seal
from megacompile.errors import BundleError
from megacompile.models import InputSet, Signature, load_arrays, save_arrays
from megacompile.plan import Backend, Machine, Runner, backend_class
from megacompile.report import Report

PARTS, CHECKS, REPORT = "candidates", "checks", "report.json"


@dataclass(frozen=True)
class Part:
    """One engine of an unfinished bundle.

    `effect` and `dtype` are the weakest promise of its passes. A `baseline` is the unchanged model
    on the same backend. `folder` is relative to the bundle.
    """

    name: str
    backend: str
    options: Mapping[str, Any]
    precision: str
    effect: str
    dtype: str
    baseline: bool
    folder: str
    needs_isa: tuple[str, ...] = ()

    def make_backend(self) -> Backend:
        """The backend that built it, with the same options."""
        return backend_class(self.backend)(**self.options)


@dataclass(frozen=True)
class Unfinished:
    """What goes into an unfinished bundle. `engines` are the parts' folders in the store."""

    name: str
    parts: Sequence[Part]
    engines: Sequence[Path]
    signature: Signature
    spec: Mapping[str, Any]
    checks: Sequence[InputSet]
    fingerprint: str
    points: Sequence[Mapping[str, int]]
    report: Report
    libraries: Sequence[str] = field(default_factory=tuple)
    outputs: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    hooks: Sequence[Path] = ()


def write_unfinished(contents: Unfinished, folder: Path, machine: Machine) -> Path:
    """Write the bundle and swap it in; the one that was there stays whole until then.

    Raises:
        MegacompileError: the disk is full or the folder can't be written.
    """
    with new_folder(folder) as temporary:
        for part, engine in zip(contents.parts, contents.engines, strict=True):
            shutil.copytree(engine, temporary / part.folder)
        (temporary / SPEC).write_text(json.dumps(contents.spec, indent=2) + "\n")
        (temporary / REPORT).write_text(contents.report.to_json())
        for hook in contents.hooks:
            (temporary / DEPLOY).mkdir(exist_ok=True)
            shutil.copyfile(hook, temporary / DEPLOY / hook.name)
        (temporary / CHECKS).mkdir()
        for number, one in enumerate(contents.checks):
            save_arrays(temporary / CHECKS / f"{number}.feeds.npz", one.feeds)
            save_arrays(temporary / CHECKS / f"{number}.reference.npz", one.reference)
        described = describe(
            contents.name,
            machine,
            contents.signature,
            contents.fingerprint,
            contents.points,
            contents.libraries,
        )
        manifest = {
            **described,
            "executed": False,
            "outputs": contents.outputs,
            "candidates": [asdict(part) for part in contents.parts],
            "checks": [{"label": one.label, "real": one.real} for one in contents.checks],
        }
        seal(manifest, temporary)
    return folder


def folder_of(name: str) -> str:
    """The folder of a candidate inside the bundle: int8/tensorrt -> candidates/int8-tensorrt."""
    return f"{PARTS}/{name.replace('/', '-')}"


def read_unfinished(folder: Path) -> dict[str, Any]:
    """The manifest of an unfinished bundle, all hashes checked.

    Raises:
        BundleError: damaged, or finished already.
    """
    manifest = read_manifest(folder)
    if manifest.get("executed", True):
        raise BundleError(
            what="the bundle is finished: it was verified and measured where it was built",
            where=str(folder),
            remedy="`megacompile bench BUNDLE` times it on this machine",
        )
    return manifest


def parts_of(manifest: Mapping[str, Any]) -> list[Part]:
    """The engines that the manifest names."""
    return [Part(**{**one, "needs_isa": tuple(one["needs_isa"])}) for one in manifest["candidates"]]


def checks_of(folder: Path, manifest: Mapping[str, Any]) -> list[InputSet]:
    """The stored input sets with the original's answers."""
    return [
        InputSet(
            one["label"],
            load_arrays(folder / CHECKS / f"{number}.feeds.npz"),
            load_arrays(folder / CHECKS / f"{number}.reference.npz"),
            one["real"],
        )
        for number, one in enumerate(manifest["checks"])
    ]


def load_part(
    folder: Path, backend: str, options: Mapping[str, Any], engine: Path, threads: int
) -> tuple[Runner, Signature]:
    """Load one engine of an unfinished bundle; the hashes were checked by whoever asks."""
    manifest = read_manifest(folder, check_files=False)
    signature = Signature.from_dict(manifest["signature"])
    machine = here(threads, manifest["target"]["device"])
    return backend_class(backend)(**options).load(engine, machine, signature), signature
