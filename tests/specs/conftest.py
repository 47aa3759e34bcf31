"""Help for the tests of the specs' hooks: load one by its file, or run one in a new process."""

from __future__ import annotations

import hashlib
import importlib.util
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

SPECS = Path(__file__).resolve().parents[2] / "specs"

HASH_CODE = """
import hashlib, sys
sys.path.insert(0, sys.argv[1])
import {name} as hooks
state = hooks.build().state_dict()
print(hashlib.sha256(b"".join(state[key].numpy().tobytes() for key in sorted(state))).hexdigest())
"""


def load_hooks(name: str) -> ModuleType:
    """The Python file beside a spec, loaded by its path."""
    spec = importlib.util.spec_from_file_location(f"specs_{name}", SPECS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def in_new_process(code: str, *arguments: str) -> str:
    """What the code prints when it runs in a process of its own."""
    command = [sys.executable, "-c", code, str(SPECS), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def state_hash(model: torch.nn.Module) -> str:
    """The sha256 over a model's weights and buffers, in the order of their names."""
    state = model.state_dict()
    data = b"".join(state[key].numpy().tobytes() for key in sorted(state))
    return hashlib.sha256(data).hexdigest()


def runner(model: torch.nn.Module) -> Callable[..., np.ndarray]:
    """A model as `evaluate` wants it: arrays in forward's order and by name, an array back."""

    @torch.inference_mode()
    def run(**arrays: np.ndarray) -> np.ndarray:
        output: np.ndarray = model(*map(torch.from_numpy, arrays.values())).numpy()
        return output

    return run


@pytest.fixture
def weights_hash() -> Callable[[str], str]:
    """A spec's name -> the sha256 over its weights, built in a process of its own."""
    return lambda name: in_new_process(HASH_CODE.format(name=name))
