"""One model in all of its forms: the same answers, also after it was stored, and its size."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from megacompile.errors import ModelError
from megacompile.models.forms import Eager, Exported, Form, Onnx, Scripted, quiet
from megacompile.models.signature import Signature, bind
from megacompile.models.tensors import Feeds
from megacompile.spec import Dim, TensorInput

INPUTS = {"x": TensorInput(shape=["batch", 3])}
DIMS = {"batch": Dim(min=1, typical=2, max=4)}
PARAMETERS = 4 * 3 + 4 + 3 * 4
"""A matrix and a bias that two layers share, and a buffer."""


class Tied(nn.Module):
    """Two layers with one matrix and bias, a buffer, and outputs in a dict."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.wide = nn.Linear(3, 4)
        self.back = nn.Linear(3, 4)
        self.back.weight = self.wide.weight
        self.back.bias = self.wide.bias
        self.register_buffer("shift", torch.randn(3, 4))

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        hidden = self.wide(x) + self.back(x)
        return {"y": hidden @ self.shift.t(), "h": hidden}


def eager() -> Eager:
    module = Tied().eval()
    structure = {"dict": {name: {"tensor": name} for name in ("y", "h")}}
    signature = Signature(INPUTS, DIMS).with_outputs(["y", "h"], structure, ["float32"] * 2)
    return Eager(module, signature, bind(module.forward, INPUTS, "test"))


def exported(form: Eager) -> Exported:
    shape = {"leaves": ({0: torch.export.Dim.AUTO},)}
    program = torch.export.export(form.flat(), (torch.zeros(2, 3),), dynamic_shapes=shape)
    return Exported(program, form.signature)


def scripted(form: Eager) -> Scripted:
    traced = torch.jit.trace(form.flat(), torch.zeros(2, 3), check_trace=False)
    return Scripted(traced, form.signature)


def feeds() -> Feeds:
    return {"x": np.arange(9, dtype=np.float32).reshape(3, 3)}


def assert_same(one: Feeds, other: Feeds) -> None:
    assert list(one) == list(other) == ["y", "h"]
    for name, array in one.items():
        np.testing.assert_allclose(array, other[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("make", [lambda form: form, exported, scripted])
def test_answers_and_sizes_are_those_of_the_module(make: Any, tmp_path: Path) -> None:
    plain = eager()
    form: Form = make(plain)
    value = plain.module(torch.from_numpy(feeds()["x"]))
    expected = {name: tensor.detach().numpy() for name, tensor in value.items()}
    assert_same(form.run(feeds()), expected)
    assert form.parameters() == PARAMETERS, "what is tied counts once"
    assert form.size_bytes() == 4 * PARAMETERS
    form.save(tmp_path)
    again = type(form).load(tmp_path, form.signature)
    assert_same(again.run(feeds()), expected)
    assert again.parameters() == PARAMETERS


def test_a_copy_is_tied_as_the_original_and_apart_from_it() -> None:
    form = eager()
    copy = form.copy()
    assert copy.module.wide.weight is copy.module.back.weight
    before = form.run(feeds())
    with torch.no_grad():
        copy.module.wide.weight.zero_()
    assert_same(form.run(feeds()), before)
    assert copy.run(feeds())["h"].std() < before["h"].std()


def test_gradients_are_off_and_the_input_stays() -> None:
    given = feeds()
    assert not eager().call(given)["y"].requires_grad
    assert np.array_equal(given["x"], feeds()["x"])


def test_a_folder_without_a_model(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no model\.onnx in the stored form"):
        Onnx.load(tmp_path, eager().signature)


def test_quiet_keeps_notices_back_and_ends(caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("somebody")
    with quiet(), warnings.catch_warnings(record=True) as caught:
        log.warning("hidden")
    log.warning("seen")
    assert [record.message for record in caplog.records] == ["seen"]
    assert caught == []
