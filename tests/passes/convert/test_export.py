"""Export: sizes stay symbolic or it fails, ties and state are kept, refusals name the place."""

from __future__ import annotations

from pathlib import Path

import pytest
from megacompile_passes.convert.export import Export
from torch import nn

from megacompile.models.forms import Exported
from megacompile.plan.declarations import consumes, produces
from tests.passes import models
from tests.passes.context import example
from tests.passes.convert.conversions import export
from tests.passes.models import dim, make_eager, tensor


def test_forms() -> None:
    assert (consumes(Export), produces(Export)) == ("Eager", "Exported")


def test_a_typical_batch_of_one_stays_dynamic(tmp_path: Path) -> None:
    model = models.conv_net(typical=1)
    untouched = models.Untouched(model.module)
    exported = export(model, tmp_path)
    models.assert_same(exported, model, sizes=[{"batch": b} for b in (1, 2, 5, 16)])
    untouched.check()


@pytest.mark.parametrize("make", [models.tied, models.shared, models.conv_twice])
def test_ties_are_kept(make: object, tmp_path: Path) -> None:
    model = make()  # type: ignore[operator]
    exported = export(model, tmp_path)
    assert exported.parameters() == model.parameters()
    models.assert_same(exported, model, rtol=1e-3)


def test_a_size_as_an_int_is_not_baked(tmp_path: Path) -> None:
    mean = make_eager(models.Mean(), {"x": tensor(2, "width")}, {"width": dim(2, 8, 32)})
    models.assert_same(export(mean, tmp_path), mean)
    positions = make_eager(
        models.Positions(),
        {"x": tensor("batch", "time", 1)},
        {"batch": dim(1, 2, 4), "time": dim(1, 7, 9)},
    )
    models.assert_same(export(positions, tmp_path), positions)


def test_equal_typical_sizes_are_not_taken_for_one(tmp_path: Path) -> None:
    model = make_eager(
        nn.Softmax(-1), {"x": tensor("a", "b")}, {"a": dim(1, 4, 9), "b": dim(1, 4, 9)}
    )
    exported = export(model, tmp_path)
    models.assert_same(exported, model, sizes=[{"a": 3, "b": 8}, {"a": 1, "b": 1}])


def test_pruned_and_dropout_in_evaluation_mode(tmp_path: Path) -> None:
    model = make_eager(models.frozen_norm(), {"x": tensor("batch", 8)}, {"batch": dim(1, 3, 5)})
    untouched = models.Untouched(model.module)
    first, second = export(model, tmp_path), export(model, tmp_path)
    untouched.check()
    models.assert_same(first, model)
    feeds = example(model.signature, {"batch": 4})
    models.assert_close(first.run(feeds), second.run(feeds), 0, 0)


@pytest.mark.parametrize("heads", [2, 8])
def test_grouped_query_attention(heads: int, tmp_path: Path) -> None:
    model = models.grouped_attention(heads)
    models.assert_same(export(model, tmp_path), model)


def test_recurrent_state_follows_the_batch(tmp_path: Path) -> None:
    gru = make_eager(
        nn.GRU(20, 20, batch_first=True),
        {"input": tensor("batch", "seq", 20)},
        {"batch": dim(1, 1, 4), "seq": dim(2, 5, 9)},
    )
    models.assert_same(export(gru, tmp_path), gru)


def test_saved_and_loaded(tmp_path: Path) -> None:
    model = models.linear()
    exported = export(model, tmp_path)
    folder = tmp_path / "saved"
    folder.mkdir()
    exported.save(folder)
    models.assert_same(Exported.load(folder, model.signature), model)
