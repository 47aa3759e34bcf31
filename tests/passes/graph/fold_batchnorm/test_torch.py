"""`fold-batchnorm` on exported programs and TorchScript: folded only where nothing else looks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from megacompile_passes.convert.export import Export
from megacompile_passes.convert.script import Script
from megacompile_passes.graph.fold_batchnorm.exported import FoldBatchNormExported
from megacompile_passes.graph.fold_batchnorm.scripted import FoldBatchNormScripted
from torch import nn

from megacompile.models.forms import Eager, Exported, Scripted
from megacompile.plan.passes import Result
from tests.passes import models
from tests.passes.context import make_context
from tests.passes.models import dim, make_eager, tensor

Fold = Callable[[Eager, Path], tuple[Any, Result[Any]]]


def exported(model: Eager, tmp_path: Path) -> tuple[Exported, Result[Exported]]:
    context = make_context(tmp_path, model.signature)
    source = Export().run(model, context).model
    return source, FoldBatchNormExported().run(source, context)


def scripted(model: Eager, tmp_path: Path) -> tuple[Scripted, Result[Scripted]]:
    context = make_context(tmp_path, model.signature)
    source = Script().run(model, context).model
    return source, FoldBatchNormScripted().run(source, context)


both = pytest.mark.parametrize("fold", [exported, scripted])


def statistics(module: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    for one in module.modules():
        if isinstance(one, (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)):
            for value in (one.running_mean, one.bias):
                nn.init.normal_(value)  # type: ignore[arg-type]
            for value in (one.running_var, one.weight):
                nn.init.uniform_(value, 0.5, 2)  # type: ignore[arg-type]
    return module


CASES = [
    (nn.Conv1d(4, 6, 3), nn.BatchNorm1d(6), (4, 8)),
    (nn.Conv2d(4, 6, 3, groups=2, bias=False), nn.BatchNorm2d(6), (4, 8, 8)),
    (nn.Conv3d(4, 6, 3), nn.BatchNorm3d(6), (4, 5, 5, 5)),
    (nn.ConvTranspose2d(4, 6, 3, groups=2), nn.BatchNorm2d(6), (4, 5, 5)),
    (nn.ConvTranspose1d(4, 6, 3, bias=False), nn.BatchNorm1d(6), (4, 5)),
]


@pytest.mark.parametrize("fold", [exported, scripted])
@pytest.mark.parametrize("case", CASES, ids=lambda case: type(case[0]).__name__)
def test_folded(fold: Fold, case: Any, tmp_path: Path) -> None:
    conv, norm, shape = case
    net = statistics(nn.Sequential(conv, norm, nn.ReLU()))
    model = make_eager(net, {"x": tensor("batch", *shape)}, {"batch": dim(1, 2, 4)})
    untouched = models.Untouched(net)
    source, result = fold(model, tmp_path)
    if fold is scripted and "Transpose" in type(conv).__name__:
        # torch's own pass leaves transposed convolutions alone
        assert result.model is source
        return
    assert (result.sites.matched, result.sites.changed) == (1, 1)
    assert result.model.parameters() == conv.weight.numel() + 6
    models.assert_same(result.model, model, atol=1e-5)
    models.assert_same(source, model)
    untouched.check()
    folder = tmp_path / "saved"
    folder.mkdir()
    result.model.save(folder)
    models.assert_same(type(result.model).load(folder, model.signature), model)


@both
def test_a_convolution_used_without_its_normalization(fold: Fold, tmp_path: Path) -> None:
    model = models.conv_twice()
    _, result = fold(model, tmp_path)
    models.assert_same(result.model, model)
    if fold is exported:
        assert result.sites.skipped == [("bn", "the convolution's weight is used elsewhere too")]
        assert "no convolution takes one over" in result.notes[0]


class Read(nn.Module):
    """The convolution's output is an output itself."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.conv(x)
        return y, self.bn(y)


class Shared(nn.Module):
    """Two convolutions of one weight, and one normalization after two convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three = (nn.Conv2d(3, 4, 3, bias=False) for _ in range(3))
        self.two.weight = self.one.weight
        self.bn, self.other = nn.BatchNorm2d(4), nn.BatchNorm2d(4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self.bn(self.one(x)), self.two(x), self.other(self.three(x)), self.other(self.one(x))


@both
@pytest.mark.parametrize("make", [Read, Shared])
def test_other_readers(make: Callable[[], nn.Module], fold: Fold, tmp_path: Path) -> None:
    model = make_eager(statistics(make()), {"x": tensor("batch", 3, 8, 8)}, {"batch": dim(1, 2, 4)})
    _, result = fold(model, tmp_path)
    models.assert_same(result.model, model)
    if fold is exported:
        assert result.sites.changed == 0
        assert all("used elsewhere" in reason for _, reason in result.sites.skipped)


@both
def test_nothing_to_do_says_so(fold: Fold, tmp_path: Path) -> None:
    source, result = fold(models.linear(), tmp_path)
    assert result.model is source
    assert result.notes == ["no batch normalization folded: there is none"]
