"""Intermediate forms where the user asked for them."""

from __future__ import annotations

from pathlib import Path

import pytest

from megacompile.errors import MegacompileError
from megacompile.measure.instruments.dump import Dump
from tests.measure.instruments.watched import Told, step_run, watch


def test_each_step_has_a_folder_that_is_written_anew(tmp_path: Path) -> None:
    for _ in range(2):
        watch(Dump(tmp_path / "dump"), step_run(Told({})))
        (place,) = (tmp_path / "dump").iterdir()
        assert place.name == "03-fold-Told"
        assert [p.name for p in place.iterdir()] == ["model"]
        (place / "old").touch()


def test_a_step_that_did_not_get_through_leaves_nothing(tmp_path: Path) -> None:
    watch(Dump(tmp_path / "dump"), step_run())
    assert not (tmp_path / "dump").exists()


def test_a_place_that_can_not_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "dump").touch()
    with pytest.raises(MegacompileError, match="writing failed") as caught:
        watch(Dump(tmp_path / "dump"), step_run(Told({})))
    assert str(tmp_path / "dump") in str(caught.value)
