"""Training checkpoints on disk: an interrupted run goes on from the last whole one.

A checkpoint is a folder with tensors (safetensors) and the rest (JSON), written under another
name and renamed when complete; its hashes are checked when it is read. No pickle.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from megacompile.errors import ModelError
from megacompile.models.torchmodules import write_tensors
from megacompile.system import disk_error, file_sha256

TENSORS, REST = "tensors.safetensors", "state.json"
NAME = re.compile(r"^checkpoint-(\d+)$")


@dataclass(frozen=True)
class Found:
    """The state of a run after `number` steps; `note` names damaged checkpoints after it."""

    number: int
    state: dict[str, Any]
    folder: Path
    note: str | None = None


class Checkpoints:
    """The checkpoints of one run, the last `keep` of them. `key` says what the run depends on:
    a checkpoint of another key is another run's and isn't used."""

    def __init__(self, folder: Path, key: str = "", keep: int = 2) -> None:
        self.folder, self.key, self.keep = folder, key, keep

    def save(self, number: int, state: Mapping[str, Any]) -> Path:
        """Write the state after `number` steps.

        Raises:
            MegacompileError: the disk is full or the folder can't be written.
        """
        tensors: dict[str, torch.Tensor] = {}
        plain = _take_apart(state, tensors)
        target = self.folder / f"checkpoint-{number}"
        temporary = self.folder / f".{target.name}-{os.getpid()}-{uuid.uuid4().hex}"
        try:
            temporary.mkdir(parents=True)
            write_tensors(tensors, temporary / TENSORS)
            record = {
                "number": number,
                "key": self.key,
                "state": plain,
                "sha256": file_sha256(temporary / TENSORS),
            }
            text = json.dumps(record)
            (temporary / REST).write_text(json.dumps({"hash": _hash(text), "record": text}))
            shutil.rmtree(target, ignore_errors=True)
            os.rename(temporary, target)
        except OSError as error:
            raise disk_error(error, self.folder) from error
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        for old in self._numbers()[self.keep :]:
            shutil.rmtree(self.folder / f"checkpoint-{old}", ignore_errors=True)
        return target

    def latest(self, most: int | None = None) -> Found | None:
        """The last whole checkpoint of this run, after at most `most` steps; None if there is
        none.

        Raises:
            ModelError: there are checkpoints of this run, and all are damaged.
        """
        damaged: list[str] = []
        for number in (n for n in self._numbers() if most is None or n <= most):
            folder = self.folder / f"checkpoint-{number}"
            try:
                state = self._read(folder)
            except (OSError, ValueError, KeyError, TypeError) as error:
                damaged.append(f"{folder.name} ({_reason(error)})")
                continue
            if state is None:
                continue
            note = f"{', '.join(damaged)} damaged: {folder.name} is used" if damaged else None
            return Found(number, state, folder, note)
        if damaged:
            raise ModelError(
                what="every checkpoint of this run is damaged",
                where=str(self.folder),
                got=", ".join(damaged),
                remedy="remove the folder to start over",
            )
        return None

    def clear(self) -> None:
        """Remove all checkpoints: the run is done."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _numbers(self) -> list[int]:
        """Numbers of all checkpoints there, the latest first."""
        if not self.folder.is_dir():
            return []
        found = (NAME.match(one.name) for one in self.folder.iterdir())
        return sorted((int(one[1]) for one in found if one), reverse=True)

    def _read(self, folder: Path) -> dict[str, Any] | None:
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        outer = json.loads((folder / REST).read_text())
        if _hash(outer["record"]) != outer["hash"]:
            raise ValueError(f"{REST} was changed")
        record = json.loads(outer["record"])
        if record["key"] != self.key:
            return None
        if file_sha256(folder / TENSORS) != record["sha256"]:
            raise ValueError(f"{TENSORS} was changed or cut off")
        try:
            tensors = load_file(str(folder / TENSORS))
        except SafetensorError as error:
            raise ValueError(str(error)) from error
        found: dict[str, Any] = _put_together(record["state"], tensors)
        return found


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _reason(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return f"{Path(str(error.filename)).name} is missing"
    return str(error) or type(error).__name__


def _take_apart(value: Any, tensors: dict[str, torch.Tensor]) -> Any:
    """Nested state as JSON; tensors go into `tensors` (no two of them share a storage there)."""
    if isinstance(value, torch.Tensor):
        name = str(len(tensors))
        tensors[name] = value.detach().cpu().contiguous().clone()
        return {"tensor": name}
    if isinstance(value, Mapping):
        items = [[_json_key(key), _take_apart(one, tensors)] for key, one in value.items()]
        return {"items": items}
    if isinstance(value, (list, tuple)):
        kind = "tuple" if isinstance(value, tuple) else "list"
        return {kind: [_take_apart(one, tensors) for one in value]}
    if value is None or isinstance(value, (bool, int, float, str)):
        return {"value": value}
    raise ModelError(
        what=f"a {type(value).__name__} can't be kept in a checkpoint",
        expected="tensors, numbers, strings, None, and lists and dicts of them",
        audience="megacompile",
    )


def _json_key(key: Any) -> str | int:
    return key if isinstance(key, (str, int)) else str(key)


def _put_together(value: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    ((kind, content),) = value.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "items":
        return {key: _put_together(one, tensors) for key, one in content}
    if kind == "value":
        return content
    items = [_put_together(one, tensors) for one in content]
    return tuple(items) if kind == "tuple" else items
