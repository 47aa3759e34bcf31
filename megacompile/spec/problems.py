"""Pydantic's problems as ours: where in the file, and which key was meant."""

from __future__ import annotations

import typing
from collections.abc import Iterator, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from megacompile.errors import SpecError, did_you_mean
from megacompile.spec import inputs
from megacompile.spec.positions import Document, KeyPath


def translate(
    error: ValidationError,
    document: Document,
    prefix: KeyPath,
    owner: type[BaseModel] | None = None,
) -> Iterator[SpecError]:
    """Pydantic's problems as ours: where in the file, expected, got, and the nearest key."""
    by_path: dict[tuple[Any, ...], SpecError] = {}
    for item in error.errors(include_url=False):
        location = (*prefix, *item["loc"])
        path = _path_in(document.data, location, item["type"])
        found = _problem(item, path, document, _known_keys(owner, location[:-1]))
        earlier = by_path.get(path)
        if earlier is None:
            by_path[path] = found
        elif found.what not in earlier.what:  # another member of a union says what it wants
            earlier.what += f", or {found.what}"
    yield from by_path.values()


def _problem(
    item: ErrorDetails, path: KeyPath, document: Document, known: Sequence[str]
) -> SpecError:
    key = str(path[-1]) if path else ""
    if item["type"] == "extra_forbidden":
        return SpecError(
            what=f"unknown key '{key}'",
            where=document.where(path, key=True),
            remedy=did_you_mean(key, known),
        )
    if item["type"] == "missing":
        return SpecError(
            what=f"'{key}' is missing",
            where=document.where(path[:-1], key=True),
            expected=f"a key '{key}'",
        )
    message = item["msg"].removeprefix("Value error, ")
    message = message[:1].lower() + message[1:]
    got = item.get("input")
    short = repr(got) if not isinstance(got, (dict, list)) else None
    shown = short if short and short not in message else None
    return SpecError(what=message, where=document.where(path), got=shown)


def _path_in(data: Any, location: tuple[Any, ...], kind: str) -> KeyPath:
    """The location without pydantic's own entries (tags of unions, names of validators)."""
    path: list[str | int] = []
    here = data
    for index, part in enumerate(location):
        last = index == len(location) - 1
        in_list = isinstance(here, list) and isinstance(part, int) and part < len(here)
        if in_list or (isinstance(here, dict) and part in here):
            here = here[part]
        elif not (last and kind in ("missing", "extra_forbidden")):
            continue
        path.append(part)
    return tuple(path)


def _known_keys(owner: type[BaseModel] | None, location: tuple[Any, ...]) -> list[str]:
    """Keys that would have been allowed at a location, found by walking the model's fields."""
    if owner is None:
        return []
    models: list[type[BaseModel]] = [owner]
    for part in location:
        fields = [m.model_fields[part] for m in models if part in m.model_fields]
        if fields:
            models = _models_in(fields[0].annotation)
    return [key for model in models for key in model.model_fields]


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    """All pydantic models that an annotation can hold, forward references resolved."""
    if isinstance(annotation, typing.ForwardRef):
        annotation = getattr(inputs, annotation.__forward_arg__, None)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [m for argument in typing.get_args(annotation) for m in _models_in(argument)]
