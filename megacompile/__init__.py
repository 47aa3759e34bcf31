"""megacompile: one spec in, the fastest right artifact and a believable report out.

Names are imported when they are used: `import megacompile` imports neither torch nor pydantic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from megacompile.builder.job import Options
    from megacompile.builder.main import Result, build
    from megacompile.engines.bundle import load
    from megacompile.engines.compiled import CompiledModel
    from megacompile.engines.trained import training_step
    from megacompile.errors import MegacompileError, PassError
    from megacompile.models.forms import Eager, Exported, Onnx, Scripted
    from megacompile.plan.passes import Effect, Fact, Pass, PassContext, Sites, select
    from megacompile.plan.passes import Result as PassResult
    from megacompile.spec import Spec
    from megacompile.training.form import Training

_HOMES = {
    "CompiledModel": "compiled",
    "Eager": "forms",
    "Effect": "passbase",
    "Exported": "forms",
    "Fact": "passbase",
    "MegacompileError": "errors",
    "Onnx": "forms",
    "Options": "job.context",
    "Pass": "passbase",
    "PassContext": "passbase",
    "PassError": "errors",
    "PassResult": "passbase:Result",
    "Result": "builder",
    "Scripted": "forms",
    "Sites": "passbase",
    "Spec": "spec",
    "Training": "forms",
    "build": "builder",
    "load": "bundle",
    "select": "passbase",
    "training_step": "training.product",
}

__all__ = [
    "CompiledModel",
    "Eager",
    "Effect",
    "Exported",
    "Fact",
    "MegacompileError",
    "Onnx",
    "Options",
    "Pass",
    "PassContext",
    "PassError",
    "PassResult",
    "Result",
    "Scripted",
    "Sites",
    "Spec",
    "Training",
    "build",
    "load",
    "select",
    "training_step",
]


def __getattr__(name: str) -> Any:
    import importlib

    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'megacompile' has no attribute '{name}'")
    module, _, inner = home.partition(":")
    value = getattr(importlib.import_module(f"megacompile.{module}"), inner or name)
    globals()[name] = value
    return value
