"""Capture an eager module as a torch.export program with the spec's dynamic sizes."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from megacompile.errors import MegacompileError
from megacompile.models import Eager, Exported, Feeds, quiet
from megacompile.plan import Effect, Fact, Pass, PassContext, Result, Sites
from megacompile_passes.convert.agreement import sizes_text
from megacompile_passes.convert.export_checks import check_dims, check_smallest, refuse_mutation_in
from megacompile_passes.convert.export_failures import explained
from megacompile_passes.modules.isolation import changed_buffers, isolated, refuse_mutation
from megacompile_passes.programs.recurrence import symbolic_recurrence
from megacompile_passes.programs.trace_inputs import (
    dynamic_shapes,
    leaves_of,
    resized,
    trace_sizes,
)

if TYPE_CHECKING:
    import torch


class Export(Pass[Eager, Exported]):
    """torch.export of the module; every size the spec names stays symbolic, or it fails."""

    name: ClassVar[str] = "export"
    effect: ClassVar[Effect] = Effect.EXACT
    requires: ClassVar[frozenset[Fact]] = frozenset()
    provides: ClassVar[frozenset[Fact]] = frozenset()
    invalidates: ClassVar[frozenset[Fact]] = frozenset({Fact.TRAINABLE})
    insertable: ClassVar[bool] = True

    def run(self, model: Eager, ctx: PassContext) -> Result[Exported]:
        signature = model.signature
        typical = ctx.examples("typical")
        sizes = trace_sizes(signature, signature.sizes_of(typical))
        feeds = resized(typical, signature, sizes)
        changed, _ = changed_buffers(model, feeds)
        refuse_mutation(changed)
        program, strict = _capture(isolated(model), feeds)
        refuse_mutation_in(program)
        check_dims(program, signature)
        exported = Exported(program, signature)
        check_smallest(model, exported, feeds, sizes)
        sites = Sites("module")
        sites.change()
        notes = [f"captured at {sizes_text(sizes)}" + (" (strict)" if strict else "")]
        return Result(exported, sites, notes)


def _capture(model: Eager, feeds: Feeds) -> tuple[torch.export.ExportedProgram, bool]:
    import torch

    leaves = leaves_of(model.signature, feeds)
    shapes = (dynamic_shapes(model.signature),)
    failures: list[Exception] = []
    # Without Python's frames first; strict, the bytecode is traced, which keeps int(x.shape[0])
    # symbolic where the other way bakes it.
    for strict in (False, True):
        try:
            with quiet(), symbolic_recurrence(), torch.no_grad():
                flat = model.flat()
                program = torch.export.export(flat, leaves, dynamic_shapes=shapes, strict=strict)
            return program, strict
        except MegacompileError:
            raise
        except Exception as error:  # noqa: BLE001 - export passes on whatever tracing raises
            failures.append(error)
    raise explained(failures, model.signature) from failures[0]
