"""Specs and ONNX files for TensorRT."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from megacompile.engines.tensorrt import flavours
from megacompile.errors import PlanError
from megacompile.models.forms import Onnx
from megacompile.models.signature import Signature
from megacompile.plan.backends import Machine
from megacompile.plan.planner import Plan, make_plan
from megacompile.spec.inputs import Dim, TensorInput
from megacompile.spec.load import load_spec_data
from megacompile.system.gpus import local_archs
from tests.field import world
from tests.field.world import dim, tensor

needs_rtx = pytest.mark.skipif(
    flavours.missing(flavours.RTX) is not None, reason=f"{flavours.missing(flavours.RTX)}"
)


needs_gpu = pytest.mark.skipif(not local_archs(), reason="this machine has no NVIDIA GPU")


TARGET = Machine("cuda", 2, (), ("sm_89", "sm_120"))


NET = """
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(16, 32)
        self.outer = nn.Linear(32, 16)
    def forward(self, x):
        return x + self.outer(torch.relu(self.inner(x)))

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(16, 4)
    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)

def build():
    torch.manual_seed(0)
    return Net()

def samples():
    generator = torch.Generator().manual_seed(1)
    for _ in range(16):
        yield {"x": torch.randn(2, 16, generator=generator).numpy()}

def evaluate(run):
    x = next(samples())["x"]
    return {"sum": float(abs(run(x=x)).sum())}
"""


INVERSE = """
import torch
from torch import nn

class Head(nn.Module):
    def forward(self, x):
        return torch.linalg.det(x).unsqueeze(-1)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = Head()
    def forward(self, x):
        return self.head(x * 2)

def build():
    return Net()
"""


def spec(**parts: Any) -> dict[str, Any]:
    return world.spec(
        **{
            "name": "net",
            "inputs": {"x": tensor("n", 16)},
            "dims": {"n": dim(1, 2, 8)},
            "target": {"device": "cuda", "arch": ["sm_89", "sm_120"]},
            "backends": ["tensorrt"],
            **parts,
        }
    )


def plan_of(**parts: Any) -> Plan:
    data = spec(**parts)
    target = data["target"]
    machine = Machine("cuda", 2, (), tuple(target["arch"]))
    return make_plan(load_spec_data(data, Path()), lambda _: machine)


def clash(**parts: Any) -> str:
    with pytest.raises(PlanError) as caught:
        plan_of(**parts)
    return str(caught.value)


def onnx_file(
    path: Path,
    nodes: list[Any],
    weights: dict[str, Any],
    x: list[Any],
    y: list[Any],
    dtype: int = TensorProto.FLOAT,
) -> Onnx:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x)],
        [helper.make_tensor_value_info("y", dtype, y)],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in weights.items()],
    )
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path
    )
    dims = {"n": Dim(min=1, typical=2, max=8)}
    return Onnx(path, Signature({"x": TensorInput(shape=["n", 8])}, dims, ("y",)))


def matmul(path: Path) -> Onnx:
    weight = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)
    return onnx_file(
        path / "m.onnx",
        [helper.make_node("MatMul", ["x", "w"], ["y"], name="mm")],
        {"w": weight},
        ["n", 8],
        ["n", 8],
    )
