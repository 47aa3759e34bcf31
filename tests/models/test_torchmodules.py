"""Torch modules: copied with what they hold, counted by storage, told apart by fingerprint."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import nn
from torch.nn.utils import prune

from megacompile.errors import ModelError
from megacompile.models.signature import Signature, bind
from megacompile.models.torchmodules import (
    Flat,
    copy_module,
    fingerprint,
    output_leaves,
    script_constants,
    unique_storages,
    write_tensors,
)
from megacompile.spec import ConstantInput, TensorInput, TupleInput

TENSOR = TensorInput(shape=[2])


def signature(*outputs: str) -> Signature:
    return Signature({"x": TENSOR}, {}).with_outputs(outputs, {"list": []}, [])


def test_leaves_go_in_and_come_out_and_none_is_another() -> None:
    class Nested(nn.Module):
        def forward(self, pair: Any, sign: int) -> dict[str, Any]:
            total = pair[0] + sign * pair[1]
            return {"a": pair[0], "b": total, "c": total}

    inputs = {"pair": TupleInput(tuple=[TENSOR, TENSOR]), "sign": ConstantInput(value=-1)}
    known = Signature(inputs, {}).with_outputs(["a", "b", "c"], {"list": []}, [])
    module = Nested()
    flat = Flat(module, known, bind(module.forward, inputs, "test"))
    one, other = torch.ones(2), torch.full((2,), 3.0)
    a, b, c = flat(one, other)
    assert a.tolist() == [1, 1]
    assert b.tolist() == c.tolist() == [-2, -2]
    assert len({t.data_ptr() for t in (one, other, a, b, c)}) == 5


def test_outputs_by_name_or_by_place() -> None:
    a, b = torch.zeros(1), torch.ones(1)
    found = output_leaves({"b": b, "a": a}, signature("a", "b"))
    assert list(found) == ["a", "b"]
    assert found["a"] is a
    assert output_leaves((a, b), signature("first", "second"))["second"] is b
    with pytest.raises(ModelError, match="change from call to call"):
        output_leaves({"a": a}, signature("a", "b"))


def test_a_copy_of_a_pruned_module() -> None:
    """Pruning leaves a tensor that is no leaf in an attribute: copy.deepcopy alone refuses it."""
    module = nn.Linear(4, 4)
    prune.random_unstructured(module, "weight", amount=0.5)
    copy = copy_module(module)
    assert torch.equal(copy.weight, module.weight)
    assert copy.weight.data_ptr() != module.weight.data_ptr()


def test_a_copy_with_other_tensors() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    module[1].weight = module[0].weight
    new = nn.Parameter(torch.zeros(2, 2))
    copy = copy_module(module, {id(module[0].weight): new})
    assert copy[0].weight is copy[1].weight is new
    assert copy[0].bias is not module[0].bias


def test_views_of_one_storage_count_once() -> None:
    whole = torch.zeros(10, dtype=torch.float16)
    found = unique_storages([whole, whole[:4], whole.view(2, 5), torch.zeros(0), torch.zeros(3)])
    assert sorted(found.values()) == [(3, 12), (10, 20)]


def test_constants_of_a_frozen_script() -> None:
    scripted = torch.jit.freeze(torch.jit.script(nn.Linear(3, 2).eval()))
    shapes = sorted(tuple(one.shape) for one in script_constants(scripted))
    assert shapes == [(2,), (2, 3)]


def test_a_full_disk_is_an_os_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def save(tensors: Any, path: str) -> None:
        raise SafetensorError(message)

    monkeypatch.setattr(safetensors.torch, "save_file", save)
    message = "I/O error: No space left on device (os error 28)"
    with pytest.raises(OSError, match="No space left") as caught:
        write_tensors({}, tmp_path / "w")
    assert caught.value.errno == errno.ENOSPC
    message = "invalid header"
    with pytest.raises(SafetensorError, match="invalid header"):
        write_tensors({}, tmp_path / "w")


def test_the_fingerprint_sees_weights_ties_and_settings() -> None:
    def made() -> nn.Sequential:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.1), nn.Linear(2, 2))

    def tied(module: nn.Sequential) -> None:
        module[2].weight = module[0].weight

    def set_apart(module: nn.Sequential) -> None:
        module[2].weight = nn.Parameter(module[0].weight.detach().clone())

    def weight(module: nn.Sequential) -> None:
        module[0].weight.data[0, 0] += 1e-3

    def rate(module: nn.Sequential) -> None:
        module[1].p = 0.2

    def kind(module: nn.Sequential) -> None:
        module[1] = nn.AlphaDropout(0.1)

    found = [fingerprint(made())]
    assert fingerprint(made()) == found[0]
    for change in (tied, set_apart, weight, rate, kind):
        module = made()
        change(module)
        found.append(fingerprint(module))
    assert len(set(found)) == 6
