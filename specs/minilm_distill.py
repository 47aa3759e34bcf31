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

TOKENS = 3072  # of a piece
LENGTHS = (24, 32, 48, 64)  # of both texts of a pair; longer ones are cut
SCALE = 20.0
PACKAGES = ("numpy", "scipy", "sklearn", "sympy", "networkx", "torch")


def pairs() -> Iterator[dict[str, NDArray[np.int64]]]:
    """Pieces of docstrings of like length, two rows each: the first sentence and the rest. int64
    ids and masks [128, 24] to [48, 64], and the number of each row's docstring [128] to [48]."""
    waiting: dict[int, list[tuple[str, str]]] = {length: [] for length in LENGTHS}
    found = _docstrings()
    random.Random(0).shuffle(found)
    for pair, length in zip(found, _lengths(found), strict=True):
        waiting[length].append(pair)
        rows = TOKENS // length
        if 2 * len(waiting[length]) == rows:
            encoded = minilm.tokenize([text for one in waiting[length] for text in one])
            waiting[length].clear()
            piece = {name: _fitted(array, length) for name, array in encoded.items()}
            yield {**piece, "docstring": np.arange(rows) // 2}


def contrastive(embedding: Tensor, batch: dict[str, Tensor]) -> Tensor:
    """The two texts of a docstring find each other among those of the batch (InfoNCE: van den
    Oord et al., arXiv:1807.03748)."""
    order = batch["docstring"].argsort()
    ones, others = embedding[order][0::2], embedding[order][1::2]
    scores = SCALE * ones @ others.T
    right = torch.arange(len(scores))
    return (F.cross_entropy(scores, right) + F.cross_entropy(scores.T, right)) / 2


def _lengths(pairs: list[tuple[str, str]]) -> list[int]:
    """The least of LENGTHS that both texts of each pair fit in, or the greatest."""
    masks = (minilm.tokenize(list(pair))["attention_mask"] for pair in pairs)
    return [next((n for n in LENGTHS if n >= mask.shape[1]), LENGTHS[-1]) for mask in masks]


def _fitted(array: NDArray[np.int64], length: int) -> NDArray[np.int64]:
    """[n, any] -> [n, length], cut or padded with zeros."""
    cut = array[:, :length]
    return np.pad(cut, ((0, 0), (0, length - cut.shape[1])))


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
