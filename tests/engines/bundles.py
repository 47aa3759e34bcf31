"""A bundle of a small model with nested outputs and inputs that may be left out."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from megacompile.builder.keys import SAMPLES
from megacompile.engines.bundle import Contents, write_bundle
from megacompile.engines.loading import here
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


X = np.arange(8, dtype=np.float32).reshape(2, 4)
