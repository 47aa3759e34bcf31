"""What layers take tells what a module's inputs may be."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from megacompile.commands.layers import Layer, candidates, layers_of
from megacompile.commands.sizes import Tensor

TABLES = nn.ModuleList([nn.Embedding(50, 8), nn.Embedding(20, 8), nn.Linear(8, 3)])


@pytest.mark.parametrize(
    ("module", "layer"),
    [
        (nn.Linear(5, 4), Layer("Linear", 5)),
        (nn.Conv2d(4, 8, 3, groups=2), Layer("Conv2d", 4)),
        (nn.Embedding(50, 8), Layer("Embedding", 50)),
        (nn.GRU(6, 4, batch_first=True), Layer("GRU", 6, True)),
        (nn.LSTM(6, 4), Layer("LSTM", 6, False)),
        (nn.BatchNorm1d(7), Layer("BatchNorm1d", 7, False)),
        (torch.jit.script(nn.Linear(5, 4)), Layer("Linear", 5, False)),
    ],
)
def test_what_a_layer_takes(module: nn.Module, layer: Layer) -> None:
    (found,) = layers_of(module)
    assert (found.kind, found.size) == (layer.kind, layer.size)
    if layer.kind in ("GRU", "LSTM"):
        assert found.batch_first == layer.batch_first


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (nn.Linear(5, 4), ("batch", 5)),
        (nn.Conv1d(3, 4, 3), ("batch", 3, "length")),
        (nn.Conv3d(3, 4, 3), ("batch", 3, "depth", "height", "width")),
        (nn.GRU(6, 4, batch_first=True), ("batch", "seq", 6)),
        (nn.GRU(6, 4), ("seq", "batch", 6)),
    ],
)
def test_the_likeliest_shape(module: nn.Module, shape: tuple[str | int, ...]) -> None:
    assert next(candidates("x", 0, list(layers_of(module)))) == Tensor("x", shape)


def test_each_input_of_ids_has_its_own_table() -> None:
    layers = list(layers_of(TABLES))
    first = [next(candidates(name, at, layers)) for at, name in enumerate(("users", "items"))]
    assert [one.range for one in first] == [(0, 49), (0, 19)]
    assert {one.dtype for one in first} == {"int64"}


def test_a_mask_is_of_zeros_and_ones() -> None:
    found = list(candidates("attention_mask", 1, list(layers_of(TABLES))))[:3]
    assert [one.dtype for one in found] == ["int64", "bool", "float32"]
    assert found[0].range == found[2].range == (0, 1)


def test_without_layers_anything_may_be() -> None:
    shapes = [one.shape for one in candidates("x", 0, [])]
    assert shapes == [("batch", "features"), ("batch", 3, "height", "width")]
