"""An engine is called as the original is."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import megacompile
from megacompile.engines.compiled import CompiledModel
from megacompile.errors import ModelError
from megacompile.models.signature import Signature
from megacompile.spec import Dim, TensorInput
from tests.engines.bundles import X


def test_structure_and_kinds_of_calls(whole: Path) -> None:
    model = megacompile.load(whole)
    first = model(X, np.ones_like(X), 2.0)
    assert type(first).__name__ == "Out"
    assert [f.name for f in dataclasses.fields(first)] == ["y", "n", "t"]
    assert first.n is None
    assert isinstance(first.t, tuple)
    np.testing.assert_allclose(first.t[1]["k"], first.t[0] + 1, atol=1e-6)
    for other in (model(x=X), model({"x": X}), model(X, mask=np.ones_like(X))):
        np.testing.assert_array_equal(other.y, first.y)
    in_torch = model(x=torch.from_numpy(X))
    assert isinstance(in_torch.y, torch.Tensor)
    np.testing.assert_array_equal(in_torch.y.numpy(), first.y)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "'x' is missing"),
        ({"x": X, "z": X}, "unknown input 'z'"),
        ({"x": X.astype(np.float64)}, "dtype"),
        ({"x": np.zeros((9, 4), np.float32)}, "outside"),
        ({"x": X, "scale": 3.0}, "constant"),
        ({"x": X[0]}, "rank"),
    ],
)
def test_wrong_calls(whole: Path, given: dict[str, Any], said: str) -> None:
    with pytest.raises(ModelError, match=said):
        megacompile.load(whole)(**given)


def test_compiled_models_are_called_like_the_original() -> None:
    x = TensorInput(shape=["batch", 2])
    structure = {"dict": {"y": {"tensor": "y"}}}
    dims = {"batch": Dim(min=1, typical=2, max=4)}
    known = Signature({"a": x, "b": x}, dims).with_outputs(["y"], structure, ["float32"])
    model = CompiledModel(lambda feeds: {"y": feeds["a"] - feeds["b"]}, known)
    ones = np.ones((3, 2), np.float32)
    for value in (
        model(ones, ones),
        model(ones, b=ones),
        model({"a": ones, "b": ones}),
        model(b=ones, a=ones),
    ):
        assert (value["y"] == 0).all()
    assert isinstance(model(torch.ones(1, 2), torch.ones(1, 2))["y"], torch.Tensor)
    assert model.samples_seen == 13
    with pytest.raises(ModelError, match="'a' is given twice"):
        model(ones, a=ones, b=ones)
    with pytest.raises(ModelError, match="more inputs than the model takes"):
        model(ones, ones, ones)
