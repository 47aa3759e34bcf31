"""Turn an eager module into TorchScript, by compiling its source or by tracing it."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, ClassVar, Literal

from megacompile.errors import MegacompileError, ModelError
from megacompile.models import Eager, Feeds, Scripted, quiet
from megacompile.plan import Effect, Fact, Pass, PassContext, Result, Sites
from megacompile_passes.convert.script_checks import Method, verify
from megacompile_passes.convert.script_source import compile_source
from megacompile_passes.messages import first_line, user_frame
from megacompile_passes.modules.isolation import changed_buffers, isolated, refuse_mutation
from megacompile_passes.programs.trace_inputs import leaves_of, resized, second_sizes, trace_sizes

if TYPE_CHECKING:
    import torch


class Script(Pass[Eager, Scripted]):
    """TorchScript; whichever way is taken, its answers are checked at two shapes."""

    name: ClassVar[str] = "script"
    effect: ClassVar[Effect] = Effect.EXACT
    requires: ClassVar[frozenset[Fact]] = frozenset()
    provides: ClassVar[frozenset[Fact]] = frozenset()
    invalidates: ClassVar[frozenset[Fact]] = frozenset({Fact.TRAINABLE})
    insertable: ClassVar[bool] = True

    method: Literal["auto", "trace", "script"] = "auto"
    freeze: bool = True

    def run(self, model: Eager, ctx: PassContext) -> Result[Scripted]:
        signature = model.signature
        typical = ctx.examples("typical")
        sizes = trace_sizes(signature, signature.sizes_of(typical))
        feeds = resized(typical, signature, sizes)
        changed, expected = changed_buffers(model, feeds)
        refuse_mutation(changed)
        checks = [(feeds, expected)]
        if other := second_sizes(signature, sizes):
            second = resized(typical, signature, other)
            checks.append((second, changed_buffers(model, second)[1]))

        # Compiled source keeps branches on values and sizes, which a trace loses: it goes first.
        methods: list[Method] = ["script", "trace"] if self.method == "auto" else [self.method]
        failures: list[MegacompileError] = []
        for method in methods:
            try:
                return self._attempt(method, model, checks, failures)
            except MegacompileError as failure:
                failures.append(failure)
        if len(failures) == 1:
            raise failures[0]
        raise ModelError(
            what="neither compiling nor tracing gives right TorchScript",
            where=next((f.where for f in failures if f.where), None),
            cause="; ".join(f"{f.what}: {f.cause or f.got or ''}" for f in failures),
            remedy=failures[0].remedy,
        ) from failures[-1]

    def _attempt(
        self,
        method: Method,
        model: Eager,
        checks: list[tuple[Feeds, Feeds]],
        failures: list[MegacompileError],
    ) -> Result[Scripted]:
        module, warned = _make(method, model, checks[0][0])
        if self.freeze:
            module = _frozen(module)
        scripted = Scripted(module, model.signature)
        verify(scripted, checks, method, warned)
        sites = Sites("module")
        sites.change()
        notes = [{"script": "compiled from source", "trace": "traced"}[method]]
        if warned and len(checks) > 1:
            notes.append(f"tracing warned, but the second shape is right: {warned[0]}")
        return Result(scripted, sites, notes + [f"{f.what}: {f.cause}" for f in failures])


def _make(method: Method, model: Eager, feeds: Feeds) -> tuple[torch.jit.ScriptModule, list[str]]:
    """The TorchScript module, leaves in and a tuple of leaves out, and the tracer's warnings."""
    import torch

    own = isolated(model)
    if method == "script":
        return compile_source(own), []
    leaves = leaves_of(model.signature, feeds)
    try:
        with quiet(), torch.no_grad(), warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            traced = torch.jit.trace(own.flat(), leaves, check_trace=False, strict=False)
    except MegacompileError:
        raise
    except Exception as error:
        raise ModelError(
            what="torch.jit.trace can't follow the model",
            where=user_frame(error),
            cause=first_line(error),
        ) from error
    warned = [w for w in seen if w.category.__name__ == "TracerWarning"]
    return traced, [str(w.message).splitlines()[0] for w in warned]


def _frozen(module: torch.jit.ScriptModule) -> torch.jit.ScriptModule:
    import torch

    if not hasattr(module, "training"):
        return module
    with quiet():
        # No numeric optimizations: `simplify` and `fold-batchnorm` do them, and say so.
        return torch.jit.freeze(module.eval(), optimize_numerics=False)
