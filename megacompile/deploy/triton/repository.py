"""A model repository on disk: versions are added, nothing that is there is changed or lost."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from megacompile.deploy.triton.config import difference, from_text, to_text
from megacompile.errors import BundleError
from megacompile.system import disk_error, output_lock

CONFIG, WARMUP = "config.pbtxt", "warmup"
# The Python backend starts an isolated interpreter, which ignores PYTHONPATH: what it names is put
# in front here, so that the server finds packages that aren't in its own Python.
MODEL_PY = """import os
import sys

sys.path[:0] = [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]

from megacompile.deploy.triton.serving import {role} as TritonPythonModel  # noqa: E402, F401
"""


@dataclass
class Model:
    """One model to be written: its configuration, the files of the new version, warm-up data."""

    name: str
    config: Any
    fill: Callable[[Path], None]
    warmup: dict[str, bytes] = field(default_factory=dict)


def add_version(
    repository: Path, models: Sequence[Model], new_config: bool
) -> tuple[int, list[str]]:
    """Write the next version of all models; returns its number and remarks.

    Models come in the order in which the server may load them: an ensemble last. Each version's
    folder appears under its number only when it is complete.

    Raises:
        BundleError: another model is there under a name, or a configuration that clients would
            notice; the difference is named.
        MegacompileError: the disk is full or the repository can't be written.
    """
    try:
        repository.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            stack.enter_context(output_lock(repository, "repository"))
            version = 1 + max((_newest(repository / one.name) for one in models), default=0)
            notes = [note for one in models for note in _check(repository, one, new_config)]
            for one in models:
                _write(repository, one, version, new_config)
    except OSError as error:
        raise disk_error(error, repository) from error
    return version, notes


def _newest(folder: Path) -> int:
    if not folder.is_dir():
        return 0
    return max((int(one.name) for one in folder.iterdir() if one.name.isdigit()), default=0)


def _check(repository: Path, model: Model, new_config: bool) -> list[str]:
    """What keeps a version from being added, before anything is written."""
    path = repository / model.name / CONFIG
    if not path.exists():
        if (repository / model.name).exists():
            raise BundleError(
                what=f"'{model.name}' is there and has no {CONFIG}",
                where=str(repository),
                remedy="remove it, or export under another name (deploy.triton.model_name)",
            )
        return []
    old = from_text(path.read_text(encoding="utf-8"), str(path))
    different = difference(old, model.config)
    if different is not None:
        raise BundleError(
            what=f"the model '{model.name}' there is another one, so a version can't be added",
            where=str(path),
            got=different,
            remedy="export under another name (deploy.triton.model_name), or into "
            "another repository",
        )
    if to_text(old) == to_text(model.config) or new_config:
        return []
    return [
        f"'{model.name}' keeps its {CONFIG}; --new-config would replace its batching, "
        "instances, warm-up and version policy"
    ]


def _write(repository: Path, model: Model, version: int, new_config: bool) -> None:
    place = repository / model.name
    if not place.exists():
        # A name that starts with a dot is no model to the server.
        temporary = repository / f".{model.name}-{uuid.uuid4().hex}"
        try:
            _version(temporary / str(version), model)
            _settings(temporary, model)
            os.rename(temporary, place)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        return
    if new_config:
        _settings(place, model)
    temporary = repository / f".{model.name}-{uuid.uuid4().hex}"
    try:
        _version(temporary, model)
        os.rename(temporary, place / str(version))
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _version(folder: Path, model: Model) -> None:
    folder.mkdir(parents=True)
    model.fill(folder)


def _settings(folder: Path, model: Model) -> None:
    if model.warmup:
        (folder / WARMUP).mkdir(exist_ok=True)
        for name, content in model.warmup.items():
            (folder / WARMUP / name).write_bytes(content)
    temporary = folder / f".{CONFIG}-{uuid.uuid4().hex}"
    temporary.write_text(to_text(model.config), encoding="utf-8")
    os.replace(temporary, folder / CONFIG)
