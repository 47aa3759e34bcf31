"""The winner on disk: engine, manifest, spec, samples. Data only; every byte is accounted for."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from megacompile.engines.manifest import describe, seal
from megacompile.models import Feeds, Signature, save_arrays
from megacompile.plan import Machine
from megacompile.system import disk_error

ENGINE = "engine"
DEPLOY = "deploy"  # the user's Python steps for serving, as text
SPEC = "spec.json"
SAMPLE_INPUTS, SAMPLE_OUTPUTS = "sample-inputs.npz", "sample-outputs.npz"


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


def _swap(new: Path, place: Path) -> None:
    old = place.with_name(f".{place.name}-{uuid.uuid4().hex}")
    if place.exists():
        os.rename(place, old)
    os.rename(new, place)
    shutil.rmtree(old, ignore_errors=True)
