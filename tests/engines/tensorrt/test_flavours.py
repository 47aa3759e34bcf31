"""Which TensorRT is installed, and what is missing of it."""

from __future__ import annotations

import pytest

from megacompile.engines.tensorrt import flavours
from megacompile.engines.tensorrt.backend import TensorRT
from tests.engines.tensorrt.networks import (
    TARGET,
    needs_rtx,
)

pytestmark = needs_rtx


def test_missing_libraries_give_the_install_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flavours, "installed_version", lambda flavour: None)
    found = TensorRT(flavour="tensorrt-rtx").availability(TARGET)
    assert "not installed" in str(found.reason)
    assert found.remedy == "pip install 'megacompile[tensorrt-rtx]'"


def test_bindings_and_libraries_must_match(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flavours, "installed_version", lambda flavour: "1.6.0.1")
    assert "must match" in str(flavours.missing(flavours.RTX))
