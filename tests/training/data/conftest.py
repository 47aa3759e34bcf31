"""A database that tests may read or break."""

from __future__ import annotations

from pathlib import Path

import pytest

from megacompile.training.data.lmdb_writer import write_lmdb
from tests.training.data.stored import samples


@pytest.fixture
def place(tmp_path: Path) -> Path:
    pytest.importorskip("lmdb")
    write_lmdb(samples(), tmp_path / "data")
    return tmp_path / "data"
