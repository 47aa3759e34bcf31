"""Drawings: scales, ticks, and nothing that a user's text could break."""

from __future__ import annotations

import pytest

from megacompile.report.svg import LEFT, RIGHT, Scale, area, curve, element, fitted, tick_texts


@pytest.mark.parametrize(
    "values", [[31.0], [0.0], [1.0, 1.0], [0.4, 3.1], [10.0, 220.0], [0.01, 5000.0], [1e-9, 3e-9]]
)
def test_scales_have_few_ticks_inside(values: list[float]) -> None:
    scale = fitted(values)
    assert len(scale.ticks()) <= 7
    assert len(tick_texts(scale)) == len(scale.ticks())
    assert all(0 <= scale.at(value) <= 100 for value in [*values, *scale.ticks()])


def test_a_scale_is_logarithmic_when_values_are_far_apart() -> None:
    assert not fitted([1.0, 20.0]).logarithmic
    assert fitted([1.0, 21.0]).logarithmic
    assert not fitted([0.0, 5000.0]).logarithmic
    middle = Scale(1.0, 100.0, logarithmic=True).at(10.0)
    assert middle == pytest.approx((LEFT + RIGHT) / 2)


def test_values_outside_stay_inside_the_drawing() -> None:
    scale = Scale(1.0, 2.0)
    assert (scale.at(-9.0), scale.at(9.0)) == (LEFT, RIGHT)


def test_ticks_share_their_decimals() -> None:
    assert tick_texts(Scale(0.0, 1.0)) == ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]
    assert tick_texts(Scale(-1.0, 1.0))[0] == "−1.0"


def test_children_and_attributes_are_escaped() -> None:
    drawn = element("text", "<b>", class_='"x"', text_anchor=None, x=1.50)
    assert drawn == '<text class="&#34;x&#34;" x="1.5">&lt;b&gt;</text>'


def test_a_curve_runs_over_the_whole_width() -> None:
    assert 'd="M15.0,10.0 L500.0,5.0 L985.0,0.0"' in curve([0.0, 0.5, 1.0], 10, "line")
    assert 'd="M15.0,10 L15.0,0.0 L985.0,10.0 L985.0,10"' in area([1.0, 0.0], 10, "curve")
    assert area([], 10, "curve") == ""
