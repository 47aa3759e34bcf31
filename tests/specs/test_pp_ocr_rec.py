"""The PP-OCR spec's hooks: decoding, edit distance, rendered lines, the original's error rate."""

from __future__ import annotations

import hashlib
from types import ModuleType

import numpy as np
import pytest

from .conftest import in_new_process, load_hooks

pytest.importorskip("PIL")
onnxruntime = pytest.importorskip("onnxruntime")

LINES_CODE = """
import sys
sys.path.insert(0, sys.argv[1])
import hashlib, pp_ocr_rec as hooks
pixels = b"".join(sample["x"].tobytes() for sample in hooks.calibration())
print(hashlib.sha256(pixels + ascii(hooks.evaluation_lines()).encode()).hexdigest())
"""


@pytest.fixture(scope="module")
def hooks() -> ModuleType:
    module = load_hooks("pp_ocr_rec")
    try:
        module.model_path()
    except ModuleNotFoundError as error:
        pytest.skip(str(error))
    return module


def test_edits(hooks: ModuleType) -> None:
    assert hooks.edits("kitten", "sitting") == 3
    assert hooks.edits("", "abc") == 3
    assert hooks.edits("same", "same") == 0


def test_decode_merges_repeats_and_drops_blanks(hooks: ModuleType) -> None:
    characters = hooks._characters()
    letter, space = characters.index("a"), len(characters) - 1
    steps = [space, letter, letter, 0, letter, space, letter, 0]
    assert hooks.decode(np.eye(len(characters), dtype=np.float32)[steps]) == "aa a"


def test_calibration_is_apart_from_evaluation(hooks: ModuleType) -> None:
    assert len(hooks.evaluation_lines()) == hooks.EVALUATION_LINES
    assert set(hooks.calibration_lines()).isdisjoint(hooks.evaluation_lines())
    samples = [sample["x"] for sample in hooks.calibration()]
    assert len(samples) == hooks.CALIBRATION_LINES
    widths = {sample.shape[-1] for sample in samples}
    assert len(widths) > 10
    assert all(320 <= width <= 960 and width % 8 == 0 for width in widths)
    assert all(sample.shape[:-1] == (1, 3, 48) for sample in samples)
    assert all(np.abs(sample).max() <= 1 for sample in samples)


def test_the_same_lines_in_every_process(hooks: ModuleType) -> None:
    pixels = b"".join(sample["x"].tobytes() for sample in hooks.calibration())
    here = hashlib.sha256(pixels + ascii(hooks.evaluation_lines()).encode()).hexdigest()
    assert in_new_process(LINES_CODE) == here


def test_the_original_reads_lines(hooks: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = hooks.evaluation_lines()[:40]
    monkeypatch.setattr(hooks, "evaluation_lines", lambda: lines)
    session = onnxruntime.InferenceSession(hooks.model_path(), providers=["CPUExecutionProvider"])
    scores = hooks.evaluate(lambda x: session.run(None, {"x": x})[0])["cer"]
    assert scores.shape == (40,)
    assert 0 <= scores.mean() < 0.1, "a model that reads nothing scores 1"
