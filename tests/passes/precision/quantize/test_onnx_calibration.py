"""Calibration data: outliers clipped, what can't be used refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from megacompile_passes.precision.quantize.onnx import QuantizeOnnx

from megacompile.errors import DataError
from tests.passes.context import make_context
from tests.passes.onnx_models import cosine
from tests.passes.precision.quantize.onnx_layers import F32, random, rows, two_layers


def test_outlier_in_calibration_is_named_and_clipped(tmp_path: Path) -> None:
    model = two_layers(tmp_path)
    samples = rows(64)
    samples[7]["x"][1, 3] = 4000
    ctx = make_context(tmp_path, model.signature, samples)
    result = QuantizeOnnx(method="static").run(model, ctx)
    text = " ".join(result.notes)
    assert "'x'" in text
    assert "4000" in text
    assert "sample 7" in text
    assert cosine(model, result.model, {"x": random(16, 32)}) > 0.99
    assert samples[7]["x"][1, 3] == 4000


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ([], "empty"),
        ([{"z": np.ones((1, 32), F32)}], "lacks input 'x'"),
        ([{"x": np.full((1, 32), np.nan, F32)}], "not finite"),
    ],
)
def test_unusable_calibration(
    tmp_path: Path, samples: list[dict[str, np.ndarray]], message: str
) -> None:
    model = two_layers(tmp_path)
    with pytest.raises(DataError, match=message):
        QuantizeOnnx(method="static").run(model, make_context(tmp_path, model.signature, samples))


def test_zero_sample_is_mentioned(tmp_path: Path) -> None:
    model = two_layers(tmp_path)
    ctx = make_context(tmp_path, model.signature, [*rows(3), {"x": np.zeros((4, 32), F32)}])
    assert "sample 3 is all zeros" in " ".join(QuantizeOnnx(method="static").run(model, ctx).notes)
