"""A bundle is written beside its place and swapped in whole."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from megacompile.engines.bundle import new_folder
from megacompile.errors import MegacompileError


def test_what_a_bundle_holds(whole: Path) -> None:
    names = {str(p.relative_to(whole)) for p in whole.rglob("*") if p.is_file()}
    assert names == {
        "manifest.json",
        "spec.json",
        "sample-inputs.npz",
        "sample-outputs.npz",
        "engine/model.onnx",
    }
    manifest = json.loads((whole / "manifest.json").read_text())
    assert set(manifest["files"]) == names - {"manifest.json"}
    assert manifest["executed"] is True
    assert manifest["candidate"] == "default/onnxruntime"
    assert list(whole.parent.iterdir()) == [whole], "nothing temporary is left"


def test_a_new_folder_takes_the_place_of_the_old(tmp_path: Path) -> None:
    place = tmp_path / "net"
    place.mkdir()
    (place / "old").write_text("old")
    with new_folder(place) as temporary:
        (temporary / "new").write_text("new")
        assert (place / "old").is_file(), "the old one stays until the new one is whole"
    assert [path.name for path in place.iterdir()] == ["new"]
    assert list(tmp_path.iterdir()) == [place]


def test_what_fails_leaves_the_old_one(tmp_path: Path) -> None:
    place = tmp_path / "net"
    place.mkdir()
    (place / "old").write_text("old")

    def fail() -> None:
        with new_folder(place) as temporary:
            (temporary / "new").write_text("new")
            raise OSError(28, "No space left on device")

    with pytest.raises(MegacompileError, match="the disk is full"):
        fail()
    assert [path.name for path in place.iterdir()] == ["old"]
    assert list(tmp_path.iterdir()) == [place]
