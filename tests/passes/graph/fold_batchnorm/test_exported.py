"""`fold-batchnorm` on exported programs: folded only where nothing else looks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from megacompile_passes.convert.export import Export
from megacompile_passes.graph.fold_batchnorm.exported import FoldBatchNormExported
from torch import nn

from megacompile.models.forms import Eager, Exported
from megacompile.plan.passes import Result
from tests.passes import models
from tests.passes.context import make_context
from tests.passes.graph.fold_batchnorm.convolutions import (
    CASES,
    Read,
    Shared,
    read_elsewhere,
    sequence,
)


def fold(model: Eager, tmp_path: Path) -> tuple[Exported, Result[Exported]]:
    context = make_context(tmp_path, model.signature)
    source = Export().run(model, context).model
    return source, FoldBatchNormExported().run(source, context)


@pytest.mark.parametrize("case", CASES, ids=lambda case: type(case[0]).__name__)
def test_folded(case: Any, tmp_path: Path) -> None:
    model = sequence(*case)
    untouched = models.Untouched(model.module)
    source, result = fold(model, tmp_path)
    assert (result.sites.matched, result.sites.changed) == (1, 1)
    assert result.model.parameters() == case[0].weight.numel() + 6
    models.assert_same(result.model, model, atol=1e-5)
    models.assert_same(source, model)
    untouched.check()
    folder = tmp_path / "saved"
    folder.mkdir()
    result.model.save(folder)
    models.assert_same(type(result.model).load(folder, model.signature), model)


def test_two_normalizations_in_a_row(tmp_path: Path) -> None:
    """The second is folded into what the first made of the weights."""
    torch.manual_seed(0)
    norms = nn.Sequential(nn.BatchNorm2d(4), nn.BatchNorm2d(4))
    for norm in norms:
        nn.init.uniform_(norm.weight, 0.5, 2.0)
        nn.init.uniform_(norm.bias, -1.0, 1.0)
    model = sequence(nn.Conv2d(3, 4, 3), norms, (3, 6, 6))
    _, result = fold(model, tmp_path)
    assert result.sites.changed == 2
    models.assert_same(result.model, model, atol=1e-5)


def test_a_convolution_used_without_its_normalization(tmp_path: Path) -> None:
    model = models.conv_twice()
    _, result = fold(model, tmp_path)
    models.assert_same(result.model, model)
    assert result.sites.skipped == [("bn", "the convolution's weight is used elsewhere too")]
    assert "no convolution takes one over" in result.notes[0]


@pytest.mark.parametrize("make", [Read, Shared])
def test_other_readers(make: Callable[[], nn.Module], tmp_path: Path) -> None:
    model = read_elsewhere(make())
    _, result = fold(model, tmp_path)
    models.assert_same(result.model, model)
    assert result.sites.changed == 0
    assert all("used elsewhere" in reason for _, reason in result.sites.skipped)


def test_nothing_to_do_says_so(tmp_path: Path) -> None:
    source, result = fold(models.linear(), tmp_path)
    assert result.model is source
    assert result.notes == ["no batch normalization folded: there is none"]
