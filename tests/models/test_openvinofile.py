"""ONNX files through OpenVINO: the precision is pinned, and what is missing is said."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from megacompile.errors import ModelError
from megacompile.models.openvinofile import open_openvino
from tests.models.test_onnxfile import LARGE, model


def test_answers_and_precision(tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    onnx.save(model(weights={"large": LARGE}), tmp_path / "m.onnx")
    session = open_openvino(tmp_path / "m.onnx", threads=1)
    x = np.ones((2, 16), np.float32)
    for outputs in (["y"], []):
        found = session.run({"x": x, "more": x}, outputs)
        np.testing.assert_allclose(found["y"], x @ LARGE, rtol=1e-5)
    assert session.precision() == "f32"


def test_a_refused_model_is_named(tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    (tmp_path / "m.onnx").write_bytes(b"no model")
    with pytest.raises(ModelError, match="OpenVINO refuses the model") as caught:
        open_openvino(tmp_path / "m.onnx")
    assert str(tmp_path / "m.onnx") in str(caught.value)


def test_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(ModelError, match=r"pip install 'megacompile\[openvino\]'"):
        open_openvino(tmp_path / "m.onnx")
