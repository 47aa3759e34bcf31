"""A training build that several files look at."""

from __future__ import annotations

from pathlib import Path

import pytest

from megacompile.builder.main import Result
from tests.builder.training_world import build, spec_of


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    pytest.importorskip("sklearn")
    folder = tmp_path_factory.mktemp("training")
    path = spec_of(
        folder,
        passes=["mixed-precision"],
        budget={"gradient_cosine": 0.9, "metric_drop": 1.0},
        data={"evaluation": {"python": "digits_train.py:evaluate"}},
        train={"batch_size": 64, "steps": 40},
    )
    return folder, build(folder, path)
