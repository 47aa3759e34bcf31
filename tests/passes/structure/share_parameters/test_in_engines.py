"""Parameters that `share-parameters` tied lie once in every file and engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.field import world

MODEL = """
import torch
from torch import nn
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(128)
        self.up, self.down = nn.Linear(128, 512), nn.Linear(512, 128)
    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(4))
    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x
def build():
    torch.manual_seed(0)
    return Net()
def calibration():
    for seed in range(8):
        yield {"x": torch.randn(2, 10, 128, generator=torch.Generator().manual_seed(seed)).numpy()}
"""
SHARE = {"share-parameters": {"mode": "group", "every": 4}}
ONE = 131_968  # parameters of one of these blocks
STATIC, DYNAMIC, WEIGHTS = (
    {"quantize": {"method": m}} for m in ("static", "dynamic", "weight-only")
)
ENGINES = {
    "onnxruntime": ("onnxruntime", [], 4),
    "onnxruntime-simplify": ("onnxruntime", ["to-onnx", "simplify"], 4),
    "onnxruntime-static": ("onnxruntime", [STATIC], 1),
    "onnxruntime-dynamic": ("onnxruntime", [DYNAMIC], 1),
    "onnxruntime-weights": ("onnxruntime", [WEIGHTS], 1),
    "openvino": ("openvino", [], 4),
    "openvino-static": ("openvino", [STATIC], 1),
    "torchscript": ("torchscript", [], 4),
    "torchscript-traced": ("torchscript", [{"script": {"method": "trace"}}, "simplify"], 4),
    "torch-compile": ("torch-compile", [], 4),
    "aotinductor": ("aotinductor", [], 4),
    "aotinductor-bfloat16": ("aotinductor", [{"cast": {"dtype": "bfloat16"}}], 2),
    "aotinductor-static": ("aotinductor", [STATIC], 1),
}
# Code and headers beside the weights; AOTInductor links its wrapper into every package.
BESIDE = {"aotinductor": 1_900_000, "torch-compile": 600_000}


@pytest.mark.parametrize("case", ENGINES)
def test_every_engine_stores_one_block(case: str, tmp_path: Path) -> None:
    backend, passes, item_bytes = ENGINES[case]
    if backend == "openvino":
        pytest.importorskip("openvino")
    if any("quantize" in p for p in passes):
        pytest.importorskip("nncf")
    data = world.spec(
        inputs={"x": world.tensor("batch", 10, 128)},
        backends=[backend],
        dims={"batch": world.dim(1, 2, 4)},
        passes=[SHARE, *passes],
        data={"calibration": {"python": "model.py:calibration", "samples": 8}},
    )
    built = world.build(tmp_path, data, {"model.py": MODEL})
    assert built.original.parameters == 4 * ONE
    size = sum(f.stat().st_size for f in built.folder.rglob("*") if f.is_file())
    # Far less than a second block would need, whatever lies beside the weights.
    assert size < 1.5 * ONE * item_bytes + BESIDE.get(backend, 60_000)
    if backend not in BESIDE:
        assert size > 0.9 * ONE * item_bytes
    for step in built.steps:
        assert step.parameters is not None
        assert step.parameters < 1.1 * ONE, step.pass_
