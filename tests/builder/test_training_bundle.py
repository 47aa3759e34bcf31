"""The bundle of a training build: data and source, and it works elsewhere."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import megacompile
from megacompile.builder.main import Result
from megacompile.engines.loading import load_compiled
from megacompile.errors import BundleError
from tests.builder.training_world import build, spec_of
from tests.training.toy import digits

pytest.importorskip("sklearn")


@pytest.mark.slow
def test_the_bundle_is_data_and_source_and_works_elsewhere(
    built: tuple[Path, Result], tmp_path: Path
) -> None:
    bundle = tmp_path / "elsewhere"
    assert built[1].bundle is not None
    shutil.copytree(built[1].bundle, bundle)
    names = {str(p.relative_to(bundle)) for p in bundle.rglob("*") if p.is_file()}
    assert names == {
        "manifest.json",
        "spec.json",
        "sample-inputs.npz",
        "sample-outputs.npz",
        "engine/training.json",
        "engine/weights.safetensors",
        "engine/source/0/digits_train.py",
    }
    assert str(built[0]) not in (bundle / "engine/training.json").read_text()
    code = """
import sys, megacompile, torch
step = megacompile.training_step(sys.argv[1])
from sklearn.datasets import load_digits
data = load_digits()
batch = {"image": torch.tensor(data.images[:64] / 16, dtype=torch.float32),
         "label": torch.tensor(data.target[:64])}
losses = [step.step(batch).loss for _ in range(20)]
assert losses[-1] < 0.8 * losses[0], losses
module = megacompile.load(sys.argv[1])
assert isinstance(module, torch.nn.Module) and not module.training
print(sorted(type(m).__name__ for m in module.children()))
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(bundle)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "ModuleList" in done.stdout


@pytest.mark.slow
def test_the_module_answers_as_the_original(built: tuple[Path, Result]) -> None:
    bundle = built[1].bundle
    assert bundle is not None
    module = megacompile.load(bundle)
    image = torch.rand(3, 8, 8)
    torch.testing.assert_close(module(image), digits().build().eval()(image))
    array = load_compiled(bundle)(image=image.numpy())
    np.testing.assert_allclose(array, module(image).detach().numpy(), rtol=1e-5)


@pytest.mark.slow
def test_a_damaged_or_foreign_bundle_is_refused(built: tuple[Path, Result], tmp_path: Path) -> None:
    assert built[1].bundle is not None
    shutil.copytree(built[1].bundle, tmp_path / "damaged")
    source = tmp_path / "damaged/engine/source/0/digits_train.py"
    source.write_text(source.read_text() + "\nprint('changed')\n")
    with pytest.raises(BundleError, match="was changed after the bundle was written"):
        megacompile.training_step(tmp_path / "damaged")


@pytest.mark.slow
def test_two_files_of_one_name_from_two_folders(tmp_path: Path) -> None:
    """The loss lies elsewhere, in a file of the same name that imports a sibling."""
    path = spec_of(tmp_path, train={"loss": "more/digits_train.py:loss", "verify_steps": 1})
    (tmp_path / "more").mkdir()
    (tmp_path / "more/weighting.py").write_text("FACTOR = 2.0\n")
    (tmp_path / "more/digits_train.py").write_text(
        "import torch.nn.functional as F\nfrom weighting import FACTOR\n"
        "def loss(outputs, batch):\n    return FACTOR * F.cross_entropy(outputs, batch['label'])\n"
    )
    result = build(tmp_path, path)
    assert result.report.candidates[0].status == "built"
    found = next((tmp_path / "cache").rglob("source/1"), None)
    assert found is not None
    assert sorted(p.name for p in found.iterdir()) == ["digits_train.py", "weighting.py"]
