"""A bundle gives back what it was built from, and refuses what it can't vouch for."""

from __future__ import annotations

import dataclasses
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import megacompile
from megacompile.builder.keys import SAMPLES
from megacompile.engines import bundle
from megacompile.engines.bundle import Contents, here, write_bundle
from megacompile.errors import BundleError, ModelError
from megacompile.plan.registry import backend_class
from tests.field import world
from tests.field.world import dim, tensor

MODEL = """
import dataclasses
import torch
from torch import nn

@dataclasses.dataclass
class Out:
    y: torch.Tensor
    n: None
    t: tuple

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
    def forward(self, x, mask=None, scale=2.0):
        h = self.layer(x)
        if mask is not None:
            h = h * mask
        return Out(y=h * scale, n=None, t=(h, {"k": h + 1}))

def build():
    torch.manual_seed(0)
    return Net()
"""
INPUTS = {
    "x": tensor("n", 4),
    "mask": tensor("n", 4, range=[0, 1], optional=True, default=1),
    "scale": {"value": 2.0},
}


def make(folder: Path, backend: str = "onnxruntime") -> Path:
    """A bundle of the model on a backend, whether it would win a race or not."""
    data = world.spec(name="net", inputs=INPUTS, dims={"n": dim(1, 3, 8)}, backends=[backend])
    built = world.build(folder, data, {"model.py": MODEL})
    one = backend_class(backend)()
    sets = built.original.input_sets()
    contents = Contents(
        name="net",
        candidate=f"default/{backend}",
        backend=backend,
        options=one.model_dump(mode="json"),
        precision="float32",
        needs_isa=(),
        engine=built.folder,
        signature=built.run.signature,
        spec=data,
        sample_inputs=sets[0].feeds,
        sample_outputs=built.folder.parent / SAMPLES,
        fingerprint=built.original.fingerprint,
        points=[{"n": 3}],
        libraries=one.libraries,
    )
    return write_bundle(contents, folder / "build" / "net", here())


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("bundle"))


@pytest.fixture
def copy(whole: Path, tmp_path: Path) -> Path:
    import shutil

    return Path(shutil.copytree(whole, tmp_path / "net"))


X = np.arange(8, dtype=np.float32).reshape(2, 4)


def test_structure_and_kinds_of_calls(whole: Path) -> None:
    model = megacompile.load(whole)
    first = model(X, np.ones_like(X), 2.0)
    assert type(first).__name__ == "Out"
    assert [f.name for f in dataclasses.fields(first)] == ["y", "n", "t"]
    assert first.n is None
    assert isinstance(first.t, tuple)
    np.testing.assert_allclose(first.t[1]["k"], first.t[0] + 1, atol=1e-6)
    for other in (model(x=X), model({"x": X}), model(X, mask=np.ones_like(X))):
        np.testing.assert_array_equal(other.y, first.y)
    in_torch = model(x=torch.from_numpy(X))
    assert isinstance(in_torch.y, torch.Tensor)
    np.testing.assert_array_equal(in_torch.y.numpy(), first.y)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "'x' is missing"),
        ({"x": X, "z": X}, "unknown input 'z'"),
        ({"x": X.astype(np.float64)}, "dtype"),
        ({"x": np.zeros((9, 4), np.float32)}, "outside"),
        ({"x": X, "scale": 3.0}, "constant"),
        ({"x": X[0]}, "rank"),
    ],
)
def test_wrong_calls(whole: Path, given: dict[str, Any], said: str) -> None:
    with pytest.raises(ModelError, match=said):
        megacompile.load(whole)(**given)


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


def test_other_hardware(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = json.loads((copy / "manifest.json").read_text())
    manifest["target"]["needs_isa"] = ["amx_int8"]
    manifest["sha256"] = bundle._own_hash(manifest)
    (copy / "manifest.json").write_text(json.dumps(manifest))
    monkeypatch.setattr(bundle, "cpu_isa", lambda: ["avx2"])
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


def command(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "MEGACOMPILE_CACHE": str(folder / "cache")}
    return subprocess.run(
        [sys.executable, "-m", "megacompile", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_run_and_bench(whole: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "in.npz", x=X)
    done = command(tmp_path, "run", str(whole), "--input", "in.npz", "--output", "out.npz")
    assert done.returncode == 0, done.stderr
    assert np.load(tmp_path / "out.npz")["y"].shape == (2, 4)
    done = command(tmp_path, "bench", str(whole), "--seconds", "0.2", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["points"][0]["p50"] > 0
    assert found["samples_cosine"] == pytest.approx(1)
    done = command(tmp_path, "run", str(tmp_path), "--input", "in.npz")
    assert done.returncode == 2
    assert "no bundle there" in done.stderr
