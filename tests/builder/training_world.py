"""A training spec on the digits in a folder of its own, and a build of it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import yaml

import megacompile
from megacompile.builder.main import Result

SPECS = Path(__file__).resolve().parents[2] / "specs"


def spec_of(folder: Path, **changes: Any) -> Path:
    """Write the digits' training spec with some keys changed (None removes one)."""
    shutil.copyfile(SPECS / "digits_train.py", folder / "digits_train.py")
    data = yaml.safe_load((SPECS / "digits_train.yaml").read_text())
    data["benchmark"] = {"seconds": 0.2}
    data.pop("data")
    data.pop("budget")
    data.pop("variants")
    data["train"] = {**data["train"], "steps": 6, "verify_steps": 3, "batch_size": 16}
    train = changes.pop("train", {})
    data["train"] = {k: v for k, v in {**data["train"], **train}.items() if v is not None}
    data = {k: v for k, v in {**data, **changes}.items() if v is not None}
    path = folder / "spec.yaml"
    path.write_text(yaml.safe_dump(data, sort_keys=False))
    return path


def build(folder: Path, path: Path, **options: Any) -> Result:
    return megacompile.build(
        path,
        megacompile.Options(
            build_dir=folder / "build",
            report_dir=folder / "report",
            cache_dir=folder / "cache",
            **options,
        ),
    )
