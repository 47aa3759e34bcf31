"""Nested outputs: taken apart into named tensors, and put together again from plain data.

A structure is JSON: {"tensor": NAME}, {"value": constant}, {"tuple": [...]}, {"list": [...]},
{"dict": {key: …}}, {"namedtuple": [class, {field: …}]}, {"dataclass": [class, {field: …}]}.
Rebuilding runs no code of the user's: a dataclass comes back as a fresh class with the same
name and fields.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from megacompile.errors import ModelError, did_you_mean

Structure = dict[str, Any]


def is_tensor(value: Any) -> bool:
    """Whether a value is a torch tensor or a numpy array; torch is not imported to tell."""
    return isinstance(value, np.ndarray) or (hasattr(value, "detach") and hasattr(value, "dtype"))


def take_apart(value: Any, default: str = "output") -> tuple[Structure, dict[str, Any]]:
    """The structure of an output and its tensors by path name (`a`, `t.0`, `output`).

    Raises:
        ModelError: an output holds something that is neither a tensor nor plain data.
    """
    found: dict[str, Any] = {}
    return _apart(value, "", default, found), found


def _apart(value: Any, path: str, default: str, found: dict[str, Any]) -> Structure:
    def inner(key: object, one: Any) -> Structure:
        return _apart(one, f"{path}.{key}" if path else str(key), default, found)

    if is_tensor(value):
        name = path or default
        if name[0].isdigit():
            name = f"{default}_{name}"
        found[name] = value
        return {"tensor": name}
    if value is None or isinstance(value, (bool, int, float, str)):
        return {"value": value}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        return {"dataclass": [type(value).__name__, {k: inner(k, v) for k, v in fields.items()}]}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        fields = {key: getattr(value, key) for key in value._fields}
        return {"namedtuple": [type(value).__name__, {k: inner(k, v) for k, v in fields.items()}]}
    if isinstance(value, collections.abc.Mapping):
        return {"dict": {str(k): inner(k, v) for k, v in value.items()}}
    if isinstance(value, tuple):
        return {"tuple": [inner(i, v) for i, v in enumerate(value)]}
    if isinstance(value, list):
        return {"list": [inner(i, v) for i, v in enumerate(value)]}
    raise ModelError(
        what=f"output '{path or default}' is of a kind that an artifact can't return",
        expected="tensors, None, numbers, strings, and tuples, lists, dicts, dataclasses of them",
        got=type(value).__name__,
        remedy="return its tensors instead",
    )


def put_together(structure: Structure, tensor: Callable[[str], Any]) -> Any:
    """The output that `take_apart` saw, with `tensor(name)` at its leaves."""
    ((kind, content),) = structure.items()
    if kind == "tensor":
        return tensor(content)
    if kind == "value":
        return content
    if kind in ("tuple", "list"):
        items = [put_together(item, tensor) for item in content]
        return tuple(items) if kind == "tuple" else items
    if kind == "dict":
        return {key: put_together(item, tensor) for key, item in content.items()}
    name, fields = content
    values = {key: put_together(item, tensor) for key, item in fields.items()}
    if kind == "namedtuple":
        return collections.namedtuple(name, list(values))(**values)
    return dataclasses.make_dataclass(name, list(values))(**values)


def rename(
    structure: Structure, leaves: list[str], wanted: list[str] | None, where: str
) -> tuple[Structure, dict[str, str]]:
    """Give leaves the spec's output names: by key where the output has keys, else in order.

    Returns the structure with new names and old name -> new name.

    Raises:
        ModelError: a wanted name is no key of the output, or the count differs.
    """
    if wanted is None:
        return structure, {leaf: leaf for leaf in leaves}
    (kind,) = structure
    if kind in ("dict", "dataclass", "namedtuple"):
        for name in wanted:
            if name not in leaves:
                raise ModelError(
                    what=f"the model returns no tensor named '{name}'",
                    where=where,
                    expected=f"keys of its output: {', '.join(leaves)}",
                    got=f"'{name}'",
                    remedy=did_you_mean(name, leaves),
                )
        return structure, {leaf: leaf for leaf in leaves}
    if len(wanted) != len(leaves):
        raise ModelError(
            what="the number of names differs from the number of output tensors",
            where=where,
            expected=f"{len(leaves)} names ({', '.join(leaves)})",
            got=f"{len(wanted)} names ({', '.join(wanted)})",
        )
    names = dict(zip(leaves, wanted, strict=True))
    return _renamed(structure, names), names


def _renamed(structure: Structure, names: dict[str, str]) -> Structure:
    ((kind, content),) = structure.items()
    if kind == "tensor":
        return {kind: names[content]}
    if kind in ("tuple", "list"):
        return {kind: [_renamed(item, names) for item in content]}
    if kind == "dict":
        return {kind: {key: _renamed(item, names) for key, item in content.items()}}
    if kind in ("dataclass", "namedtuple"):
        return {kind: [content[0], {k: _renamed(v, names) for k, v in content[1].items()}]}
    return structure
