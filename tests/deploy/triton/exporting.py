"""Bundles exported with other settings than they were built with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from megacompile.deploy.triton.config import from_text
from megacompile.deploy.triton.export import export_triton
from megacompile.engines.manifest import MANIFEST, seal
from megacompile.errors import BundleError
from tests.deploy.triton.conftest import read_json

FIXED: dict[str, Any] = {"preferred_batch_sizes": [2, 4], "max_queue_delay_us": 300}


def reseal(folder: Path, spec_data: dict[str, Any] | None = None, **changes: Any) -> Path:
    """The bundle with another manifest or spec, its hashes right again."""
    manifest = read_json(folder / MANIFEST)
    if spec_data is not None:
        (folder / "spec.json").write_text(json.dumps(spec_data))
    (folder / MANIFEST).unlink()
    manifest = {**manifest, **changes}
    seal({k: v for k, v in manifest.items() if k not in ("files", "sha256")}, folder)
    return folder


def export(bundle: Path, repository: Path, triton: dict[str, Any], **changes: Any) -> Any:
    """Export with other settings; the configuration as a message."""
    reseal(bundle, {**read_json(bundle / "spec.json"), "deploy": {"triton": triton}}, **changes)
    exported = export_triton(bundle, repository, lambda message: None)
    return from_text((repository / exported.models[0] / "config.pbtxt").read_text(), "")


def refused(bundle: Path, repository: Path, triton: dict[str, Any], **changes: Any) -> str:
    with pytest.raises(BundleError) as caught:
        export(bundle, repository, triton, **changes)
    assert not list(repository.glob("[!.]*"))  # nothing was written
    return str(caught.value)
