"""Repositories on disk: what is written, kept and refused. No server."""

from __future__ import annotations

from pathlib import Path

import pytest

from megacompile.deploy.triton.export import export_triton
from megacompile.errors import BundleError
from tests.deploy.triton.bundles import write
from tests.deploy.triton.conftest import NET, read_json, spec
from tests.deploy.triton.exporting import FIXED, export, reseal
from tests.field import world

pytest.importorskip("tritonclient", reason="tritonclient is not installed")


def test_versions_are_added_and_never_changed(bundle: Path, tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    export(bundle, repository, FIXED)
    before = {p: p.read_bytes() for p in (repository / "net").rglob("*") if p.is_file()}
    exported = export_triton(bundle, repository, lambda message: None)
    assert exported.version == 2
    export(bundle, repository, {**FIXED, "max_queue_delay_us": 900})
    assert sorted(p.name for p in (repository / "net").iterdir() if p.name.isdigit()) == list("123")
    after = {p: p.read_bytes() for p in before}
    assert after == before


def test_tuning_changes_only_when_asked(bundle: Path, tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    export(bundle, repository, FIXED)
    reseal(
        bundle,
        {
            **read_json(bundle / "spec.json"),
            "deploy": {"triton": {**FIXED, "max_queue_delay_us": 900}},
        },
    )
    kept = export_triton(bundle, repository, lambda message: None)
    assert "--new-config" in kept.notes[0]
    text = (repository / "net" / "config.pbtxt").read_text()
    assert "max_queue_delay_microseconds: 300" in text
    changed = export_triton(bundle, repository, lambda message: None, new_config=True)
    assert changed.notes == []
    text = (repository / "net" / "config.pbtxt").read_text()
    assert "max_queue_delay_microseconds: 900" in text


def test_another_model_under_the_name_is_refused(
    bundle: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    repository = tmp_path / "repository"
    export(bundle, repository, FIXED)
    folder = tmp_path_factory.mktemp("wide")
    world.write(folder, {"model.py": NET.replace("64", "32")})
    data = spec(inputs={"x": world.tensor("batch", "rows", 32)}, deploy={"triton": FIXED})
    with pytest.raises(BundleError, match="another one") as caught:
        export_triton(write(folder, data), repository, lambda message: None)
    assert "64" in str(caught.value.got)
    assert "32" in str(caught.value.got)
    assert not (repository / "net" / "2").exists()


def test_a_broken_configuration_there_is_named(bundle: Path, tmp_path: Path) -> None:
    place = tmp_path / "repository" / "net"
    place.mkdir(parents=True)
    (place / "config.pbtxt").write_text("name: ")
    with pytest.raises(BundleError, match="can't be read"):
        export(bundle, tmp_path / "repository", FIXED)
