"""Docstrings to teach MiniLM's shared layers with: of the standard library and of packages.

None of them is evaluated: a text that occurs in the pairs of `minilm.py:evaluate` is left out.
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
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

PAIRS = 48
LENGTH = 32  # tokens; longer texts are cut
SCALE = 20.0
PACKAGES = ("numpy", "scipy", "sklearn")


def pairs() -> Iterator[dict[str, NDArray[np.int64]]]:
    """Pieces of 48 docstrings, two rows each: the first sentence and the rest. int64 [96, 32] ids
    and masks, and the number of each row's docstring [96]."""
    found = _docstrings()
    random.Random(0).shuffle(found)
    for start in range(0, len(found) - PAIRS + 1, PAIRS):
        chosen = found[start : start + PAIRS]
        encoded = minilm.tokenize([text for pair in chosen for text in pair])
        piece = {name: _fitted(array) for name, array in encoded.items()}
        yield {**piece, "docstring": np.arange(2 * PAIRS) // 2}


def contrastive(embedding: Tensor, batch: dict[str, Tensor]) -> Tensor:
    """The two texts of a docstring find each other among those of the batch (InfoNCE: van den
    Oord et al., arXiv:1807.03748)."""
    order = batch["docstring"].argsort()
    ones, others = embedding[order][0::2], embedding[order][1::2]
    scores = SCALE * ones @ others.T
    right = torch.arange(len(scores))
    return (F.cross_entropy(scores, right) + F.cross_entropy(scores.T, right)) / 2


def _fitted(array: NDArray[np.int64]) -> NDArray[np.int64]:
    """[n, any] -> [n, 32], cut or padded with zeros."""
    cut = array[:, :LENGTH]
    return np.pad(cut, ((0, 0), (0, LENGTH - cut.shape[1])))


def _docstrings() -> list[tuple[str, str]]:
    """(first sentence, the rest) of docstrings; no text occurs twice, none is evaluated."""
    seen = {text for pair in minilm.evaluation_pairs() for text in pair}
    found: list[tuple[str, str]] = []
    for path in _files():
        try:
            tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError):
            continue
        for node in ast.walk(tree):
            pair = minilm.sentence_and_rest(node)
            if pair and seen.isdisjoint(pair):
                seen.update(pair)
                found.append(pair)
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
