"""Names of passes and backends -> classes, imported only when named.

A distribution registers its passes through one entry point of the group `megacompile.passes`
that points at a table: name -> "module:Class", or a tuple of them, one per form.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from megacompile.errors import MegacompileError, PassError, SpecError, did_you_mean
from megacompile.plan.backends import Backend
from megacompile.plan.declarations import check_class
from megacompile.plan.passes import Pass
from megacompile.system import hooks

BACKENDS: dict[str, str] = {
    "aotinductor": "megacompile.engines.aotinductor:AOTInductor",
    "onnxruntime": "megacompile.engines.onnxruntime:ONNXRuntime",
    "openvino": "megacompile.engines.openvino:OpenVINO",
    "tensorrt": "megacompile.engines.tensorrt.backend:TensorRT",
    "torch-tensorrt": "megacompile.engines.torch_tensorrt:TorchTensorRT",
    "torch-compile": "megacompile.engines.torch_compile:TorchCompile",
    "torchscript": "megacompile.engines.torchscript:TorchScript",
    "training": "megacompile.engines.training:TrainingBackend",
}


@cache
def pass_table() -> Mapping[str, tuple[str, ...]]:
    """All registered pass names with their class references.

    Raises:
        PassError: two distributions use one name, or a table is not a table.
    """
    return _table("megacompile.passes", {})


@cache
def backend_table() -> Mapping[str, tuple[str, ...]]:
    """All registered backend names, our own first, with their class references."""
    return _table("megacompile.backends", {name: (ref,) for name, ref in BACKENDS.items()})


def _table(group: str, own: Mapping[str, tuple[str, ...]]) -> Mapping[str, tuple[str, ...]]:
    found = dict(own)
    owners = dict.fromkeys(found, "megacompile")
    for entry in sorted(entry_points(group=group), key=lambda e: (e.value, e.name)):
        owner = entry.dist.name if entry.dist else entry.value
        try:
            table = entry.load()
        except Exception as error:
            raise PassError(
                what=f"the table of '{owner}' can't be loaded",
                where=entry.value,
                cause=f"{type(error).__name__}: {error}",
                remedy=f"reinstall or remove '{owner}'",
                audience="pass author",
            ) from error
        if not isinstance(table, Mapping):
            raise PassError(
                what=f"the entry point of '{owner}' is no table",
                where=entry.value,
                expected="a dict of name -> 'module:Class'",
                got=repr(table),
                audience="pass author",
            )
        for name, references in table.items():
            if name in found:
                raise PassError(
                    what=f"two owners of the name '{name}' in {group}",
                    got=f"'{owners[name]}' and '{owner}'",
                    remedy="uninstall one of them, or ask its author to rename",
                    audience="pass author",
                )
            found[name] = (references,) if isinstance(references, str) else tuple(references)
            owners[name] = owner
    return found


def pass_classes(name: str, base: Path) -> list[type[Pass[Any, Any]]]:
    """The classes of a pass name, one per form; `FILE.py:Class` is looked up from `base`.

    Raises:
        SpecError: unknown name. PassError: the class is incomplete.
    """
    if ":" in name:
        return [check_class(hooks.load(name, base), name)]
    table = pass_table()
    if name not in table:
        raise SpecError(what=f"unknown pass '{name}'", remedy=did_you_mean(name, table))
    return [check_class(_load(reference), reference) for reference in table[name]]


def backend_class(name: str) -> type[Backend]:
    """The class of a backend name.

    Raises:
        SpecError: unknown name.
    """
    table = backend_table()
    if name not in table:
        raise SpecError(what=f"unknown backend '{name}'", remedy=did_you_mean(name, table))
    found = _load(table[name][0])
    if not (isinstance(found, type) and issubclass(found, Backend)):
        raise MegacompileError(what=f"'{table[name][0]}' is no backend", audience="pass author")
    return found


def _load(reference: str) -> Any:
    module, _, name = reference.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise PassError(
            what=f"'{reference}' can't be loaded",
            cause=f"{type(error).__name__}: {error}",
            audience="pass author",
        ) from error


@cache
def conversions() -> tuple[type[Pass[Any, Any]], ...]:
    """Passes that the planner may insert: they turn one form into another."""
    found = [cls for name in pass_table() for cls in pass_classes(name, Path())]
    return tuple(cls for cls in found if cls.insertable)
