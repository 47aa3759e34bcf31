"""A 2.4 GB model (nine Linear(8192, 8192)) to ONNX Runtime: how much memory does a build take?

    python benchmarks/large.py [LAYERS [WIDTH]]

Prints the largest memory of all processes of the build together (unique set sizes, sampled), each
step's own peak, and the status.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil

import megacompile

MODEL = """
import torch
from torch import nn

def build():
    torch.manual_seed(0)
    with torch.no_grad():
        layers = []
        for _ in range({layers}):
            layer = nn.Linear({width}, {width}, device="meta").to_empty(device="cpu")
            nn.init.uniform_(layer.weight, -0.01, 0.01)
            nn.init.zeros_(layer.bias)
            layers.append(layer)
    return nn.Sequential(*layers)
"""


class Sampler(threading.Thread):
    """Memory of this process and all below it, sampled ten times a second."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak = 0
        self.running = True

    def run(self) -> None:
        me = psutil.Process()
        while self.running:
            total = 0
            for process in [me, *me.children(recursive=True)]:
                try:
                    total += process.memory_full_info().uss
                except psutil.Error:
                    continue
            self.peak = max(self.peak, total)
            time.sleep(0.1)


def main() -> None:
    layers = int(sys.argv[1]) if len(sys.argv) > 1 else 9
    width = int(sys.argv[2]) if len(sys.argv) > 2 else 8192
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "model.py").write_text(MODEL.format(layers=layers, width=width))
        spec = megacompile.Spec.model_validate(
            {
                "name": "large",
                "model": {"python": "model.py:build"},
                "dims": {"n": {"min": 1, "typical": 2, "max": 4}},
                "inputs": {"input": {"shape": ["n", width]}},
                "passes": ["simplify"],
                "backends": ["onnxruntime"],
                "benchmark": {"baselines": ["eager"], "seconds": 5},
            }
        )
        options = megacompile.Options(
            build_dir=folder / "build", report_dir=folder / "report", cache_dir=folder / "cache"
        )
        sampler = Sampler()
        sampler.start()
        report = megacompile.build(spec, options, base=folder).report
        sampler.running = False
        (candidate,) = report.candidates
        print(f"{candidate.name}: {candidate.status} {candidate.reason or ''}")
        steps = [*candidate.steps, *([candidate.lowering] if candidate.lowering else [])]
        for step in steps:
            print(
                f"  {step.pass_:<12} {step.seconds:7.1f} s, peak {step.peak_memory_mb} MB, "
                f"size {(step.size_bytes or 0) / 1e9:.2f} GB"
            )
        print(f"largest memory of all processes: {sampler.peak / 1e9:.2f} GB")


if __name__ == "__main__":
    main()
