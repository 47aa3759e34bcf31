"""A bundle is loaded where it can be vouched for, and nothing in it is a pickle."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import megacompile
from megacompile.engines import loading
from megacompile.engines import manifest as manifests
from megacompile.errors import BundleError
from tests.engines.bundles import INPUTS, X, make
from tests.field import world
from tests.field.world import dim


def test_other_hardware(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = json.loads((copy / "manifest.json").read_text())
    manifest["target"]["needs_isa"] = ["amx_int8"]
    manifest["sha256"] = manifests.own_hash(manifest)
    (copy / "manifest.json").write_text(json.dumps(manifest))
    monkeypatch.setattr(loading, "cpu_isa", lambda: ["avx2"])
    with pytest.raises(BundleError, match="other numbers"):
        megacompile.load(copy)


def _no_pickle(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("a pickle is loaded")

    monkeypatch.setattr(pickle, "load", refuse)
    monkeypatch.setattr(pickle, "loads", refuse)
    monkeypatch.setattr(pickle, "Unpickler", refuse)
    original = torch.load

    def load(*args: Any, **kwargs: Any) -> Any:
        assert kwargs.get("weights_only", True), "torch.load with pickle"
        return original(*args, **kwargs)

    monkeypatch.setattr(torch, "load", load)


@pytest.mark.parametrize(
    "backend",
    [
        "onnxruntime",
        "openvino",
        "torchscript",
        "aotinductor",
        "torch-compile",
    ],
)
def test_no_pickle_is_loaded(backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make(tmp_path, backend)
    if backend not in ("torch-compile",):
        _no_pickle(monkeypatch)
        found = megacompile.load(folder)(x=X)
    else:
        # Compiling uses pickle within the process; what matters is that the bundle has none.
        found = megacompile.load(folder)(x=X)
        assert not [f for f in folder.rglob("*") if f.suffix in (".pkl", ".pickle")]
    again = world.load_original(_spec(tmp_path), tmp_path).call(  # type: ignore[attr-defined]
        {"x": X, "mask": np.ones_like(X)}
    )
    np.testing.assert_allclose(found.y, again.y.numpy(), atol=1e-5)


def _spec(folder: Path) -> Any:
    data = world.spec(name="net", inputs=INPUTS, dims={"n": dim(1, 3, 8)})
    loaded = world.load_spec_data(data, folder)
    assert loaded.spec is not None
    return loaded.spec
