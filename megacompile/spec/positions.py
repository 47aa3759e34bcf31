"""YAML and JSON text as plain data, with the line and column of every key and value."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import yaml

from megacompile.errors import SpecError

KeyPath = tuple[str | int, ...]

MAX_NODES = 100_000


class _CoreLoader(yaml.SafeLoader):
    """YAML 1.2's core schema: `no` is a word, `1e-3` is a number."""


_CoreLoader.yaml_implicit_resolvers = {}
for tag, pattern, first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
    (
        "float",
        r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
        r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        "-+.0123456789",
    ),
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
):
    _CoreLoader.add_implicit_resolver(
        f"tag:yaml.org,2002:{tag}", re.compile(f"^(?:{pattern})$"), list(first)
    )


def _integer(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> int:
    """`017` is seventeen; PyYAML's own reading is YAML 1.1's, octal."""
    text = str(node.value)
    base = {"0o": 8, "0x": 16}.get(text[:2], 10)
    return int(text, base)


_CoreLoader.add_constructor("tag:yaml.org,2002:int", _integer)


@dataclass
class Document:
    """Data of a spec file and where each piece of it stands (line and column from 1)."""

    name: str
    data: Any
    values: dict[KeyPath, tuple[int, int]] = field(default_factory=dict)
    keys: dict[KeyPath, tuple[int, int]] = field(default_factory=dict)
    problems: list[SpecError] = field(default_factory=list)

    def where(self, path: KeyPath, key: bool = False) -> str:
        """`FILE:LINE:COLUMN: dotted.path`; the nearest known parent's line if there is none."""
        known = self.keys if key else self.values
        position = known.get(path)
        parent = path
        while position is None and parent:
            parent = parent[:-1]
            position = self.keys.get(parent) or self.values.get(parent)
        line, column = position or (1, 1)
        prefix = f"{self.name}:{line}:{column}"
        return f"{prefix}: {dotted(path)}" if path else prefix


def dotted(path: KeyPath) -> str:
    """`('passes', 0, 'cast')` as `passes[0].cast`."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{part}" if text else str(part)
    return text


def parse_document(text: str, name: str) -> Document:
    """Read YAML or JSON.

    Raises:
        SpecError: the text is not YAML, has several documents, or is nested beyond reason.
    """
    try:
        node = yaml.compose(text, Loader=_CoreLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        raise SpecError(
            what=f"not valid YAML: {error.problem or error}",
            where=f"{name}:{line}:{column}",
            remedy="check indentation, quotes and brackets there",
        ) from error
    except yaml.YAMLError as error:
        # A ReaderError knows an offset into the text, no mark.
        offset = getattr(error, "position", 0)
        line = text.count("\n", 0, offset if isinstance(offset, int) else 0) + 1
        raise SpecError(
            what=f"not readable as text: {str(error).splitlines()[0]}",
            where=f"{name}:{line}:1",
            remedy="save the file as UTF-8 text without control characters",
        ) from error
    except RecursionError as error:
        raise SpecError(
            what="nested too deeply", where=f"{name}:1:1", remedy="flatten the file"
        ) from error
    document = Document(name=name, data=None)
    if node is None:
        document.problems.append(
            SpecError(
                what="the file is empty",
                where=f"{name}:1:1",
                remedy="`megacompile init` writes a spec",
            )
        )
        return document
    document.data = _Builder(document).build(node)
    return document


def _joined(text: str) -> str:
    """JSON writes a character beyond U+FFFF as two escapes, which YAML reads as two halves that no
    encoding takes; a half alone becomes the replacement character."""
    if not any("\ud800" <= one <= "\udfff" for one in text):
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


class _Builder:
    def __init__(self, document: Document) -> None:
        self.document = document
        self.loader = _CoreLoader("")
        self.count = 0

    def problem(self, node: yaml.Node, what: str, remedy: str | None = None) -> None:
        mark = node.start_mark
        where = f"{self.document.name}:{mark.line + 1}:{mark.column + 1}"
        self.document.problems.append(SpecError(what=what, where=where, remedy=remedy))

    def build(
        self, node: yaml.Node, path: KeyPath = (), open_: frozenset[int] = frozenset()
    ) -> Any:
        mark = node.start_mark
        self.document.values[path] = (mark.line + 1, mark.column + 1)
        self.count += 1
        if self.count > MAX_NODES or len(path) > 60 or id(node) in open_:
            self.problem(node, "an alias that expands without end, or a file nested beyond reason")
            raise self.document.problems[-1]
        inside = open_ | {id(node)}
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, path, inside)
        if isinstance(node, yaml.SequenceNode):
            return [self.build(n, (*path, i), inside) for i, n in enumerate(node.value)]
        try:
            value = self.loader.construct_object(node)
        except (yaml.YAMLError, ValueError, OverflowError):
            self.problem(
                node,
                f"a value of type {node.tag} is not allowed here",
                "write a plain string, number, list or mapping",
            )
            return None
        if not isinstance(value, (str, int, float, bool, type(None))):
            return str(node.value)  # e.g. a YAML timestamp: a spec has none
        return _joined(value) if isinstance(value, str) else value

    def mapping(
        self, node: yaml.MappingNode, path: KeyPath, inside: frozenset[int]
    ) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                self.problem(key_node, "a key must be a plain word")
                continue
            key = _joined(str(key_node.value))
            if key in result:
                self.problem(key_node, f"key '{key}' stands twice", "remove one of them")
                continue
            mark = key_node.start_mark
            self.document.keys[(*path, key)] = (mark.line + 1, mark.column + 1)
            result[key] = self.build(value_node, (*path, key), inside)
        return result
