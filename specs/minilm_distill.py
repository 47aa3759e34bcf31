"""Texts to distil MiniLM with: docstrings of the standard library and of installed packages.

None of them is evaluated: a text that occurs in the pairs of `minilm.py:evaluate` is left out.
Texts are cut to a few lengths and batched by them, so that little is padding.
"""

from __future__ import annotations

import ast
import random
import sysconfig
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import minilm
import numpy as np

LENGTHS = (12, 20, 32, 64)  # tokens; longer texts are cut
PACKAGES = ("numpy", "scipy", "sklearn")


def texts() -> Iterator[minilm.Arrays]:
    """int64 [n, length] ids and masks, a piece for each length."""
    encoded = [minilm.tokenize([text]) for text in _docstrings()]
    rows: dict[int, list[minilm.Arrays]] = {length: [] for length in LENGTHS}
    for one in encoded:
        count = one["input_ids"].shape[1]
        length = next((n for n in LENGTHS if count <= n), LENGTHS[-1])
        rows[length].append({name: _fitted(array, length) for name, array in one.items()})
    for found in rows.values():
        if found:
            yield {name: np.concatenate([one[name] for one in found]) for name in found[0]}


def _fitted(array: np.ndarray, length: int) -> np.ndarray:
    """[1, n] -> [1, length], cut or padded with zeros."""
    cut = array[:, :length]
    return np.pad(cut, ((0, 0), (0, length - cut.shape[1])))


def _docstrings() -> list[str]:
    """First sentences and the rest of docstrings, each text once, in a seeded order."""
    seen = {text for pair in minilm.evaluation_pairs() for text in pair}
    found: list[str] = []
    for path in _files():
        try:
            tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError):
            continue
        for node in ast.walk(tree):
            for text in minilm.sentence_and_rest(node) or ():
                if text not in seen:
                    seen.add(text)
                    found.append(text)
    random.Random(0).shuffle(found)
    return found


def _files() -> Iterator[Path]:
    """Python files of the standard library and of the packages, without tests."""
    roots = [Path(sysconfig.get_path("stdlib"))]
    for name in PACKAGES:
        spec = find_spec(name)
        if spec is not None and spec.submodule_search_locations:
            roots.append(Path(spec.submodule_search_locations[0]))
    for number, root in enumerate(roots):
        for path in sorted(root.rglob("*.py")):
            inside = path.relative_to(root).parts
            installed = number == 0 and "site-packages" in inside
            if not installed and not {"test", "tests", "idlelib"} & set(inside):
                yield path
