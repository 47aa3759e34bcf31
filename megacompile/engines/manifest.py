"""A bundle's manifest: what it says, and that no file differs from what it says."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from megacompile import __version__
from megacompile.errors import BundleError
from megacompile.models import Signature
from megacompile.plan import Machine
from megacompile.system import file_sha256, installed

MANIFEST = "manifest.json"
SCHEMA = 1


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
    manifest["files"] = {name: _fingerprint(folder / name) for name in names}
    manifest["sha256"] = own_hash(manifest)
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")


def _fingerprint(file: Path) -> dict[str, Any]:
    return {"bytes": file.stat().st_size, "sha256": file_sha256(file)}


def own_hash(manifest: Mapping[str, Any]) -> str:
    """The hash of a manifest's own content."""
    content = {key: value for key, value in manifest.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def read_manifest(folder: Path, check_files: bool = True) -> dict[str, Any]:
    """A bundle's manifest, after all hashes were checked.

    Raises:
        BundleError: no bundle, a missing, unknown or changed file, a newer layout.
    """
    path = folder / MANIFEST
    try:
        manifest: dict[str, Any] = json.loads(path.read_text())
        whole = manifest["sha256"] == own_hash(manifest)
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
            got=own_hash(manifest),
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
