"""The end of a build in the terminal: golden, and within eighty columns."""

from __future__ import annotations

import pytest

from .views import ALL, FACTORIES, Golden, terminal


@pytest.mark.parametrize("name", FACTORIES)
def test_terminal_is_golden(name: str, golden: Golden) -> None:
    golden(f"{name}.txt", terminal(FACTORIES[name]()))


def test_terminal_fits_eighty_columns() -> None:
    for factory in ALL.values():
        assert max(len(line) for line in terminal(factory()).splitlines()) <= 80
