"""A bundle, a repository and a running server that the tests of this folder share."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import megacompile
from megacompile.deploy.triton.export import export_triton
from tests.deploy.triton.server import Server, missing
from tests.field import world
from tests.field.world import dim, tensor

READY_SECONDS = 60.0
NET = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*(m for _ in range(4) for m in (nn.Linear(64, 64), nn.Tanh())))
    def forward(self, x):
        return {"y": self.layers(x), "total": x.sum((1, 2))}

def build():
    torch.manual_seed(0)
    return Net()
"""
STEPS = """
import numpy as np
import helper

def parse(text):
    rows = [np.array(helper.numbers(one.decode()), np.float32) for one in text.ravel()]
    return {"x": np.stack([np.resize(row, (4, 64)) for row in rows])}

def label(y, total):
    return {"label": np.array([[f"{value:.3f}".encode()] for value in total], dtype=object),
            "first": y[:, 0, :2]}
"""
HELPER = """
def numbers(text):
    return [float(word) for word in text.split()]
"""


@dataclass
class World:
    """A bundle, and what the original says."""

    folder: Path
    bundle: Path
    model: Any

    def feeds(self, batch: int = 1, rows: int = 4, seed: int = 0) -> np.ndarray[Any, Any]:
        return np.random.default_rng(seed).standard_normal((batch, rows, 64)).astype(np.float32)


def spec(**parts: Any) -> dict[str, Any]:
    return world.spec(
        **{
            "name": "net",
            "inputs": {"x": tensor("batch", "rows", 64)},
            "dims": {"batch": dim(1, 2, 8), "rows": dim(1, 4, 16)},
            "outputs": ["y", "total"],
            "benchmark": {"baselines": ["eager"], "seconds": 1},
            **parts,
        }
    )


def build(folder: Path, data: dict[str, Any], files: dict[str, str]) -> Path:
    """A bundle by a real build; the engine wins by being compared with a slow baseline, or is
    written whatever the race says."""
    world.write(folder, files)
    from tests.deploy.triton.bundles import write

    return write(folder, data)


@pytest.fixture(scope="session")
def net(tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("net")
    bundle = build(folder, spec(), {"model.py": NET})
    return World(folder, bundle, megacompile.load(bundle))


@pytest.fixture
def bundle(net: World, tmp_path: Path) -> Path:
    return Path(shutil.copytree(net.bundle, tmp_path / "bundle"))


@pytest.fixture(scope="session")
def served(
    net: World, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Server, World, Path]]:
    """A server on a repository with the net, polled every second."""
    reason = missing()
    if reason is not None:
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("served")
    repository = folder / "repository"
    export_triton(net.bundle, repository, lambda message: None)
    with Server(repository, folder / "work") as server:
        wait_ready(server, "net")
        yield server, net, repository


def wait_ready(server: Server, name: str, version: str = "") -> None:
    """Wait until a model answers; the server's log if it never does."""
    import tritonclient.http as http

    client = http.InferenceServerClient(f"127.0.0.1:{server.http}")
    end = time.monotonic() + READY_SECONDS
    while time.monotonic() < end:
        if client.is_model_ready(name, version):
            return
        time.sleep(0.1)
    raise AssertionError(
        f"{name} {version} did not become ready:\n" + server.log.read_text()[-3000:]
    )


def read_json(path: Path) -> Any:
    return json.loads(path.read_text())
