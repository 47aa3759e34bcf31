"""Fixtures of all tests of `recover`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from megacompile.models.forms import Eager
from megacompile.plan.passes import PassContext
from tests.passes.context import make_context
from tests.passes.recover.worlds import DATA, net


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tiny products: on a busy machine threads that wait for each other take most of the time."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def world(tmp_path: Path) -> tuple[Eager, PassContext]:
    """The original, and a context that knows it."""
    (tmp_path / "data.py").write_text(DATA)
    model = net()
    (tmp_path / "steps").mkdir()
    context = make_context(tmp_path / "steps", model.signature)
    return model, replace(context, base=tmp_path, original=lambda: model)
