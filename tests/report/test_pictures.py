"""Curves over one another: memory over a step, losses."""

from __future__ import annotations

import math

import pytest

from megacompile.report.pictures import BINS, _binned, _thinned, loss_picture, memory_picture

from .training_samples import training_record


def test_the_picture_keeps_the_peak_and_holds_values_between_points() -> None:
    bins = _binned([(0.0, 1.0), (50.0, 10.0), (100.0, 2.0)], end=100.0, top=10.0)
    assert len(bins) == BINS + 1
    assert max(bins) == pytest.approx(0.97)
    assert bins[60] == pytest.approx(0.097), "the first value holds until the second"
    assert bins[-1] == pytest.approx(0.97), "the last bin holds what came before its end"
    picture = memory_picture(training_record())
    assert picture is not None
    assert [name for _, name, _ in picture.legend] == ["plain", "optimised"]


def test_long_curves_are_thinned_out_and_keep_both_ends() -> None:
    values = [float(at) for at in range(10 * BINS)]
    thinned = _thinned(values)
    assert len(thinned) == BINS + 1
    assert (thinned[0], thinned[-1]) == (values[0], values[-1])
    assert _thinned(values[:BINS]) == values[:BINS]


def test_losses_share_one_scale_and_say_where_they_end() -> None:
    record = training_record()
    record.optimised.losses[3] = math.nan
    picture = loss_picture(record)
    assert picture is not None
    plain, optimised = record.plain.losses, record.optimised.losses
    assert [value for _, _, value in picture.legend] == [
        f"ends at {plain[-1]:.4g}",
        f"ends at {optimised[-1]:.4g}",
    ]
    assert "nan" not in picture.drawing
    record.plain.losses = [1.0]
    assert loss_picture(record) is None
