"""megacompile: one spec in, the fastest right artifact and a believable report out.

Names are imported when they are used: `import megacompile` imports neither torch nor pydantic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from megacompile.builder import Result, build
    from megacompile.bundle import load
    from megacompile.compiled import CompiledModel
    from megacompile.errors import MegacompileError, PassError
    from megacompile.forms import Eager, Exported, Onnx, Scripted, Training
    from megacompile.job.context import Options
    from megacompile.passbase import Effect, Fact, Pass, PassContext, Sites, select
    from megacompile.passbase import Result as PassResult
    from megacompile.spec import Spec
    from megacompile.training.product import training_step

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
