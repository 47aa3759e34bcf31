"""A small model with passes of its own that sleep, crash, lie or do nothing, and a build of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import megacompile

MODEL = """
import pathlib
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 2)
    def forward(self, x):
        return self.second(torch.relu(self.first(x)))
def build():
    torch.manual_seed(0)
    net = Net()
    weights = pathlib.Path(__file__).with_name("bias.txt")
    if weights.exists():
        nn.init.constant_(net.second.bias, float(weights.read_text()))
    return net
"""


PASSES = """
import os
import signal
import time
from typing import ClassVar
from megacompile import Effect, Fact, Onnx, Eager, Pass, PassContext, PassResult, Sites

class Base(Pass[Eager, Eager]):
    effect: ClassVar[Effect] = Effect.EXACT
    requires: ClassVar[frozenset[Fact]] = frozenset()
    provides: ClassVar[frozenset[Fact]] = frozenset()
    invalidates: ClassVar[frozenset[Fact]] = frozenset()

class Same(Base):
    name: ClassVar[str] = "same"
    value: int = 0
    def run(self, model: Eager, ctx: PassContext) -> PassResult[Eager]:
        return PassResult(model.copy(), Sites("module", 1, 1))

class Slow(Base):
    name: ClassVar[str] = "slow"
    def run(self, model: Eager, ctx: PassContext) -> PassResult[Eager]:
        time.sleep(60)
        return PassResult(model.copy(), Sites("module", 1, 1))

class Crash(Base):
    name: ClassVar[str] = "crash"
    number: int = signal.SIGABRT
    def run(self, model: Eager, ctx: PassContext) -> PassResult[Eager]:
        os.kill(os.getpid(), self.number)
        time.sleep(60)
        return PassResult(model.copy(), Sites("module", 1, 1))

class Lie(Base):
    name: ClassVar[str] = "lie"
    def run(self, model: Eager, ctx: PassContext) -> PassResult[Eager]:
        copy = model.copy()
        copy.module.second.bias.data += 1
        return PassResult(copy, Sites("module", 1, 1))

class Nothing(Base):
    name: ClassVar[str] = "nothing"
    def run(self, model: Eager, ctx: PassContext) -> PassResult[Eager]:
        sites = Sites("module")
        sites.skip("first", "not of the right kind")
        return PassResult(model, sites)
"""


def write(folder: Path, variants: dict[str, list[Any]], name: str = "net") -> Path:
    data = {
        "name": name,
        "model": {"python": "model.py:build"},
        "dims": {"n": {"min": 1, "typical": 4, "max": 8}},
        "inputs": {"x": {"shape": ["n", 8]}},
        "variants": {k: {"passes": p, "backends": ["onnxruntime"]} for k, p in variants.items()},
        "benchmark": {"baselines": ["eager"], "seconds": 0.2},
    }
    (folder / "model.py").write_text(MODEL)
    (folder / "own.py").write_text(PASSES)
    path = folder / f"{name}.json"
    path.write_text(json.dumps(data, indent=2))
    return path


def options(folder: Path, **more: Any) -> megacompile.Options:
    return megacompile.Options(
        build_dir=folder / "build", report_dir=folder / "report", cache_dir=folder / "cache", **more
    )
