"""`fold-batchnorm` on TorchScript: folded only where nothing else looks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from megacompile_passes.convert.script import Script
from megacompile_passes.graph.fold_batchnorm.scripted import FoldBatchNormScripted
from torch import nn

from megacompile.models.forms import Eager, Scripted
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


def fold(model: Eager, tmp_path: Path) -> tuple[Scripted, Result[Scripted]]:
    context = make_context(tmp_path, model.signature)
    source = Script().run(model, context).model
    return source, FoldBatchNormScripted().run(source, context)


@pytest.mark.parametrize("case", CASES, ids=lambda case: type(case[0]).__name__)
def test_folded(case: Any, tmp_path: Path) -> None:
    model = sequence(*case)
    untouched = models.Untouched(model.module)
    source, result = fold(model, tmp_path)
    if "Transpose" in type(case[0]).__name__:
        # torch's own pass leaves transposed convolutions alone
        assert result.model is source
        return
    assert (result.sites.matched, result.sites.changed) == (1, 1)
    assert result.model.parameters() == case[0].weight.numel() + 6
    models.assert_same(result.model, model, atol=1e-5)
    models.assert_same(source, model)
    untouched.check()
    folder = tmp_path / "saved"
    folder.mkdir()
    result.model.save(folder)
    models.assert_same(type(result.model).load(folder, model.signature), model)


def test_a_convolution_used_without_its_normalization(tmp_path: Path) -> None:
    model = models.conv_twice()
    _, result = fold(model, tmp_path)
    models.assert_same(result.model, model)


@pytest.mark.parametrize("make", [Read, Shared])
def test_other_readers(make: Callable[[], nn.Module], tmp_path: Path) -> None:
    model = read_elsewhere(make())
    _, result = fold(model, tmp_path)
    models.assert_same(result.model, model)


def test_nothing_to_do_says_so(tmp_path: Path) -> None:
    source, result = fold(models.linear(), tmp_path)
    assert result.model is source
    assert result.notes == ["no batch normalization folded: there is none"]
