"""Read a spec and find all its problems in one go."""

from __future__ import annotations

import json
import re
import typing
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, TypeAdapter, ValidationError

from megacompile.errors import SpecError, did_you_mean
from megacompile.spec import models
from megacompile.spec.check import cross_check
from megacompile.spec.models import AnyInput, Dim, Spec
from megacompile.spec.positions import Document, parse_document


@dataclass
class Loaded:
    """A spec file after reading: the spec if nothing is wrong, and all problems if it is.

    `base` is the folder that the spec's relative paths start from. `sections` holds the
    parts that are valid by themselves, so that later checks can add their problems.
    """

    document: Document
    base: Path
    spec: Spec | None
    problems: list[SpecError] = field(default_factory=list)
    sections: dict[str, Any] = field(default_factory=dict)
    partial: set[str] = field(default_factory=set)


def load_spec(path: Path) -> Loaded:
    """Read a YAML or JSON spec file; problems are collected, not raised.

    Raises:
        SpecError: the file can't be read, or is not YAML at all.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        near = did_you_mean(path.name, [p.name for p in path.parent.glob("*.y*ml")])
        raise SpecError(what="no such spec file", where=str(path), remedy=near) from error
    except UnicodeDecodeError as error:
        raise SpecError(
            what="not a text file in UTF-8", where=str(path), remedy="save the spec as UTF-8 text"
        ) from error
    except OSError as error:
        raise SpecError(
            what="the spec can't be read",
            where=str(path),
            cause=error.strerror,
            remedy="name a readable file",
        ) from error
    document = parse_document(text, str(path))
    return _validate(document, path.parent.resolve())


def load_spec_data(data: dict[str, Any], base: Path, name: str = "<spec>") -> Loaded:
    """The same for a spec given as plain data; positions are those of its JSON text."""
    return _validate(parse_document(json.dumps(data, indent=2), name), base.resolve())


def _validate(document: Document, base: Path) -> Loaded:
    problems = list(document.problems)
    loaded = Loaded(document, base, None, problems)
    data = document.data
    if problems and data is None:
        return loaded
    if not isinstance(data, dict):
        problems.append(
            SpecError(
                what="a spec is a mapping of keys to values",
                where=document.where(()),
                got=type(data).__name__,
            )
        )
        return loaded
    fields = Spec.model_fields
    for key in data:
        if key not in fields:
            problems.append(
                SpecError(
                    what=f"unknown key '{key}'",
                    where=document.where((key,), key=True),
                    remedy=did_you_mean(key, fields),
                )
            )
    for name, info in fields.items():
        if name not in data:
            if info.is_required():
                problems.append(
                    SpecError(
                        what=f"'{name}' is missing",
                        where=document.where(()),
                        expected=f"a key '{name}'",
                    )
                )
            else:
                loaded.sections[name] = info.get_default(call_default_factory=True)
            continue
        _validate_section(loaded, name, data[name])
    problems += cross_check(document, loaded.sections, loaded.partial)
    if not problems:
        loaded.spec = Spec(**{key: loaded.sections[key] for key in data})
    problems.sort(key=_line)
    return loaded


def _line(problem: SpecError) -> tuple[int, int]:
    numbers = re.search(r":(\d+):(\d+)", problem.where or "")
    return (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)


def _validate_section(loaded: Loaded, name: str, value: Any) -> None:
    """One section at a time, dims and inputs one by one: no fault hides another."""
    annotation = _annotation(name)
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(annotation)
        loaded.sections[name] = adapter.validate_python(value)
        return
    except ValidationError as error:
        loaded.problems += translate(error, loaded.document, (name,), Spec)
    if name not in ("dims", "inputs") or not isinstance(value, dict):
        return
    entry: TypeAdapter[Any] = TypeAdapter(Dim if name == "dims" else AnyInput)
    valid: dict[str, Any] = {}
    for key, one in value.items():
        try:
            valid[key] = entry.validate_python(one)
        except ValidationError:
            if name == "dims":
                valid[key] = None
    loaded.sections[name] = valid
    loaded.partial.add(name)


def _annotation(name: str) -> Any:
    info = Spec.model_fields[name]
    if info.metadata:
        return Annotated[(info.annotation, *info.metadata)]
    return info.annotation


def translate(
    error: ValidationError,
    document: Document,
    prefix: tuple[str | int, ...],
    owner: type[BaseModel] | None = None,
) -> Iterator[SpecError]:
    """Pydantic's problems as ours: where in the file, expected, got, and the nearest key."""
    by_path: dict[tuple[Any, ...], SpecError] = {}
    for item in error.errors(include_url=False):
        path = _path_in(document.data, (*prefix, *item["loc"]), item["type"])
        key = str(path[-1]) if path else ""
        if item["type"] == "extra_forbidden":
            known = _known_keys(owner, (*prefix, *item["loc"])[:-1])
            found = SpecError(
                what=f"unknown key '{key}'",
                where=document.where(path, key=True),
                remedy=did_you_mean(key, known),
            )
        elif item["type"] == "missing":
            found = SpecError(
                what=f"'{key}' is missing",
                where=document.where(path[:-1], key=True),
                expected=f"a key '{key}'",
            )
        else:
            message = item["msg"].removeprefix("Value error, ")
            message = message[:1].lower() + message[1:]
            got = item.get("input")
            short = repr(got) if not isinstance(got, (dict, list)) else None
            found = SpecError(
                what=message,
                where=document.where(path),
                got=short if short and short not in message else None,
            )
        earlier = by_path.get(path)
        if earlier is None:
            by_path[path] = found
        elif found.what not in earlier.what:  # another member of a union says what it wants
            earlier.what += f", or {found.what}"
    yield from by_path.values()


def _path_in(data: Any, location: tuple[Any, ...], kind: str) -> tuple[str | int, ...]:
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
        named = [
            m.model_fields[part].annotation
            for m in models
            if isinstance(part, str) and part in m.model_fields
        ]
        if named:
            models = _models_in(named[0])
    return [key for model in models for key in model.model_fields]


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    """All pydantic models that an annotation can hold, forward references resolved."""

    if isinstance(annotation, typing.ForwardRef):
        annotation = getattr(models, annotation.__forward_arg__, None)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [m for argument in typing.get_args(annotation) for m in _models_in(argument)]
