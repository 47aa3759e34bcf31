"""What the tests of plans share."""

from __future__ import annotations

import pytest

from megacompile.plan import registry
from megacompile.plan.backends import Availability


@pytest.fixture(autouse=True)
def all_available(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans are those of a machine that has every backend."""
    for name in registry.backend_table():
        cls = registry.backend_class(name)
        monkeypatch.setattr(cls, "availability", lambda self, target: Availability())
