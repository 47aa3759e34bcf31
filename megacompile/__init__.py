"""megacompile: one spec in, the fastest right artifact and a believable report out.

Names are imported when they are used: `import megacompile` imports neither torch nor pydantic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from megacompile.builder import Options, Result, build
    from megacompile.engines import CompiledModel, load, training_step
    from megacompile.errors import MegacompileError, PassError
    from megacompile.models import Eager, Exported, Onnx, Scripted
    from megacompile.plan import Effect, Fact, Pass, PassContext, Sites, select
    from megacompile.plan import Result as PassResult
    from megacompile.spec import Spec
    from megacompile.training import Training

# Where each public name comes from: a room, or a name in a room.
_HOMES = {
    "CompiledModel": "engines",
    "Eager": "models",
    "Effect": "plan",
    "Exported": "models",
    "Fact": "plan",
    "MegacompileError": "errors",
    "Onnx": "models",
    "Options": "builder",
    "Pass": "plan",
    "PassContext": "plan",
    "PassError": "errors",
    "PassResult": "plan:Result",
    "Result": "builder",
    "Scripted": "models",
    "Sites": "plan",
    "Spec": "spec",
    "Training": "training",
    "build": "builder",
    "load": "engines",
    "select": "plan",
    "training_step": "engines",
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
