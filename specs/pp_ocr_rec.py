"""PP-OCRv4 text recognition: rendered lines of real text and their character error rate.

Model: `ch_PP-OCRv4_rec_infer.onnx` (Apache-2.0) from the package `rapidocr-onnxruntime` 1.4.4,
exported by PaddlePaddle and unchanged. Its metadata holds the characters that it can read.

Data: first lines of the docstrings of Python's standard library, rendered with the one font that
Pillow carries, small, grey, blurred and noisy. They are real text but not photographs, so the
error rate is not that of a camera. A line of the calibration is never evaluated.
"""

from __future__ import annotations

import ast
import random
import sysconfig
from collections.abc import Callable, Iterator
from functools import cache
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter, ImageFont

PACKAGE, MODEL = "rapidocr_onnxruntime", "models/ch_PP-OCRv4_rec_infer.onnx"
HEIGHT = 48
MIN_WIDTH, MAX_WIDTH, STEP = 320, 960, 8  # the model takes one step of 8 pixels per output
MIN_CHARACTERS, MAX_CHARACTERS = 12, 44
CALIBRATION_LINES = 48
EVALUATION_LINES = 200
BLANK = 0

Pixels = NDArray[np.float32]


def calibration() -> Iterator[dict[str, Pixels]]:
    """48 lines, float32 [1, 3, 48, width] each with values -1 to 1."""
    for index, text in enumerate(calibration_lines()):
        yield {"x": render(text, seed=index)}


def evaluate(run: Callable[..., Pixels]) -> dict[str, NDArray[np.float64]]:
    """Character error rate of each of 200 lines: edits over characters, lower is better."""
    lines = evaluation_lines()
    read = [decode(run(x=render(line, seed=1000 + i))[0]) for i, line in enumerate(lines)]
    errors = [edits(line, text) / len(line) for line, text in zip(lines, read, strict=True)]
    return {"cer": np.array(errors)}


def calibration_lines() -> list[str]:
    """Lines that are not evaluated."""
    return _lines()[:CALIBRATION_LINES]


def evaluation_lines() -> list[str]:
    """200 lines of 12 to 44 characters."""
    return _lines()[CALIBRATION_LINES : CALIBRATION_LINES + EVALUATION_LINES]


def render(text: str, seed: int) -> Pixels:
    """One line, dark on light -> float32 [1, 3, 48, width], padded to at least 320 pixels."""
    generator = np.random.default_rng(seed)
    font = ImageFont.load_default(size=float(generator.integers(13, 24)))
    paper, ink = int(generator.integers(170, 240)), int(generator.integers(0, 110))
    left, top, right, bottom = font.getbbox(text)
    size = (round(right - left) + 16, round(bottom - top) + 12)
    image = Image.new("L", size, paper)
    ImageDraw.Draw(image).text((8 - left, 6 - top), text, fill=ink, font=font)
    image = image.filter(ImageFilter.GaussianBlur(generator.uniform(0.3, 1.1)))
    width = min(MAX_WIDTH, round(size[0] * HEIGHT / size[1]))
    resized = np.asarray(image.resize((width, HEIGHT), Image.Resampling.BILINEAR), np.float32)
    noisy = np.clip(resized + generator.normal(0, 10, resized.shape), 0, 255)
    padded = np.zeros((1, 3, HEIGHT, max(MIN_WIDTH, -(-width // STEP) * STEP)), np.float32)
    padded[..., :width] = noisy / 127.5 - 1
    return padded


def decode(scores: Pixels) -> str:
    """Greedy CTC: float32 [steps, characters] -> text, without the spaces the margins read as."""
    best = [BLANK, *scores.argmax(axis=1).tolist()]
    kept = (now for before, now in pairwise(best) if now not in (before, BLANK))
    return "".join(_characters()[index] for index in kept).strip()


def edits(expected: str, got: str) -> int:
    """Levenshtein distance: insertions, deletions and substitutions."""
    row = list(range(len(got) + 1))
    for i, wanted in enumerate(expected, start=1):
        above, row = row, [i]
        for j, found in enumerate(got, start=1):
            row.append(min(above[j] + 1, row[j - 1] + 1, above[j - 1] + (wanted != found)))
    return row[-1]


def model_path() -> Path:
    """The ONNX file, found without importing its package."""
    spec = find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(
            f"{PACKAGE} is not installed: pip install --no-deps rapidocr-onnxruntime==1.4.4"
        )
    return Path(spec.submodule_search_locations[0]) / MODEL


@cache
def _characters() -> list[str]:
    """What each output stands for: the blank first, the space last."""
    metadata = {entry.key: entry.value for entry in onnx.load(model_path()).metadata_props}
    return ["", *metadata["character"].splitlines(), " "]


@cache
def _lines() -> list[str]:
    """Distinct docstring lines of the standard library's top-level modules, in a seeded order."""
    lines: dict[str, None] = {}
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("[a-h]*.py")):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                line = " ".join((ast.get_docstring(node) or "").partition("\n")[0].split())
                if line.isascii() and MIN_CHARACTERS <= len(line) <= MAX_CHARACTERS:
                    lines[line] = None
    shuffled = list(lines)
    random.Random(0).shuffle(shuffled)
    return shuffled
