"""No byte of a bundle differs from what its manifest says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import megacompile
from megacompile.errors import BundleError


@pytest.mark.parametrize(
    "name", ["engine/model.onnx", "sample-inputs.npz", "sample-outputs.npz", "spec.json"]
)
def test_a_changed_byte(copy: Path, name: str) -> None:
    data = bytearray((copy / name).read_bytes())
    data[len(data) // 2] ^= 1
    (copy / name).write_bytes(bytes(data))
    with pytest.raises(BundleError, match=f"'{name}' was changed"):
        megacompile.load(copy)


def test_a_changed_manifest(copy: Path) -> None:
    manifest = json.loads((copy / "manifest.json").read_text())
    manifest["signature"]["dims"]["n"]["max"] = 99
    (copy / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(BundleError, match="manifest was changed"):
        megacompile.load(copy)


def test_a_missing_or_added_file(copy: Path) -> None:
    (copy / "engine" / "extra.so").write_bytes(b"")
    with pytest.raises(BundleError, match="does not belong"):
        megacompile.load(copy)
    (copy / "engine" / "extra.so").unlink()
    (copy / "engine" / "model.onnx").unlink()
    with pytest.raises(BundleError, match="missing"):
        megacompile.load(copy)
    with pytest.raises(BundleError, match="no bundle there"):
        megacompile.load(copy / "engine")
