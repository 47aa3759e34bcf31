"""The step that did the damage, and how few are looked at."""

from __future__ import annotations

import pytest

from megacompile.measure.instruments.bisect import first_broken


@pytest.mark.parametrize("count", [0, 1, 2, 7, 16])
def test_every_place_is_found_with_few_looks(count: int) -> None:
    for place in range(count + 1):
        looks: list[int] = []

        def broken(step: int, place: int = place, looks: list[int] = looks) -> bool:
            looks.append(step)
            return step >= place

        found = first_broken(range(count), broken)
        assert found == (place if place < count else None)
        assert len(looks) <= count.bit_length()
