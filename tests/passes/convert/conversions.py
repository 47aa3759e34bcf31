"""The passes of this room on an eager model."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from megacompile_passes.convert.export import Export
from megacompile_passes.convert.script import Script
from megacompile_passes.convert.to_onnx import ToOnnx

from megacompile.models.forms import Eager, Exported, Onnx, Scripted
from megacompile.plan.passes import Result, Traits
from tests.passes import models
from tests.passes.context import make_context
from tests.passes.models import dim, make_eager, tensor


def export(model: Eager, tmp_path: Path) -> Exported:
    return Export().run(model, make_context(tmp_path, model.signature)).model


def to_onnx(model: Eager, tmp_path: Path, opset: int | None = None) -> Onnx:
    exported = Export().run(model, make_context(tmp_path, model.signature)).model
    traits = Traits("test", opset=opset)
    return ToOnnx().run(exported, make_context(tmp_path, model.signature, traits=traits)).model


Method = Literal["auto", "trace", "script"]


def script(model: Eager, tmp_path: Path, method: Method = "auto") -> Result[Scripted]:
    return Script(method=method).run(model, make_context(tmp_path, model.signature))


def mean() -> Eager:
    return make_eager(models.Mean(), {"x": tensor(2, "width")}, {"width": dim(2, 8, 32)})
