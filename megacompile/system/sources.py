"""A user's Python as what a step depends on: a file and its siblings that it imports."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable
from pathlib import Path


def python_sources(path: Path) -> list[Path]:
    """A Python file and the files beside it that it imports, directly or through each other."""
    found: list[Path] = []
    waiting = [path]
    while waiting:
        file = waiting.pop()
        if file in found or not file.is_file():
            continue
        found.append(file)
        try:
            tree = ast.parse(file.read_bytes())
        except (SyntaxError, ValueError):
            continue
        for node in ast.walk(tree):
            names: Iterable[str] = ()
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module]
            waiting += [file.parent / (name.split(".")[0] + ".py") for name in names]
    return found


def sources_hash(path: Path) -> str:
    """A hash of a Python file and its siblings that it imports."""
    digest = hashlib.sha256()
    for file in sorted(python_sources(path)):
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()
