"""A bundle, whole and as a copy to damage."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.engines.bundles import make


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("bundle"))


@pytest.fixture
def copy(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "net"))
