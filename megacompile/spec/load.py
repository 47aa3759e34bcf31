"""Read a spec and find all its problems in one go."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import TypeAdapter, ValidationError

from megacompile.errors import SpecError, did_you_mean
from megacompile.spec.check import cross_check
from megacompile.spec.inputs import AnyInput, Dim
from megacompile.spec.models import Spec
from megacompile.spec.positions import Document, parse_document
from megacompile.spec.problems import translate


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
