"""Capture an eager module as a torch.export program with the spec's dynamic sizes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from megacompile.errors import MegacompileError, ModelError, PassError
from megacompile.models import Eager, Exported, Feeds, Signature, as_float64, quiet, to_torch
from megacompile.plan import Effect, Fact, Pass, PassContext, Result, Sites
from megacompile_passes.modules.tracing import (
    alias_root,
    changed_buffers,
    first_line,
    isolated,
    refuse_mutation,
    resized,
    trace_sizes,
    user_frame,
)
from megacompile_passes.programs.recurrence import symbolic_recurrence

if TYPE_CHECKING:
    import torch

BRANCH = re.compile(r"data-dependent (expression|branching)", re.IGNORECASE)
CONSTRAINT = re.compile(r"^\s+- (.*)$", re.MULTILINE)
# At other sizes the same products are summed in another order.
CLOSE = {"rtol": 1e-3, "atol": 1e-4}


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
        _refuse_mutation_in(program)
        _check_dims(program, signature)
        exported = Exported(program, signature)
        _check_smallest(model, exported, feeds, sizes)
        sites = Sites("module")
        sites.change()
        notes = [f"captured at {_text(sizes)}" + (" (strict)" if strict else "")]
        return Result(exported, sites, notes)


def _text(sizes: dict[str, int]) -> str:
    return ", ".join(f"{k}={v}" for k, v in sizes.items()) or "fixed sizes"


def dynamic_shapes(signature: Signature) -> tuple[dict[int, Any], ...]:
    """torch's description of dynamic sizes, one dict of axis to Dim per input leaf."""
    from torch.export import Dim

    # torch makes a symbol of the name: it must be an identifier.
    dims = {
        name: Dim(re.sub(r"\W", "_", f"{name}"), min=dim.min, max=dim.max)
        for name, dim in signature.dims.items()
        if not dim.fixed
    }
    return tuple(
        {axis: dims[size] for axis, size in enumerate(spec.shape) if size in dims}
        for spec in signature.tensors.values()
    )


def _capture(model: Eager, feeds: Feeds) -> tuple[torch.export.ExportedProgram, bool]:
    import torch

    leaves = tuple(to_torch(feeds[name]) for name in model.signature.tensors)
    shapes = (dynamic_shapes(model.signature),)
    failures: list[Exception] = []
    # Without Python's frames first; strict, the bytecode is traced, which keeps int(x.shape[0])
    # symbolic where the other way bakes it.
    for strict in (False, True):
        try:
            with quiet(), symbolic_recurrence(), torch.no_grad():
                program = torch.export.export(
                    model.flat(), leaves, dynamic_shapes=shapes, strict=strict
                )
            return program, strict
        except MegacompileError:
            raise
        except Exception as error:  # noqa: BLE001 - export passes on whatever tracing raises
            failures.append(error)
    raise _explained(failures, model.signature) from failures[0]


def _explained(failures: list[Exception], signature: Signature) -> ModelError:
    where = next((frame for f in failures if (frame := user_frame(f))), None)
    first = failures[0]
    if any(BRANCH.search(str(f)) for f in failures):
        return ModelError(
            what="the model branches on a tensor's value, or needs it as a number",
            where=where,
            cause=first_line(first),
            expected="the same operators whatever the values are",
            remedy="use torch.where, or torch.cond for a branch that costs much",
        )
    for failure in failures:
        if "Constraints violated" not in str(failure):
            continue
        text = str(failure)
        named = re.search(r"Constraints violated \(([^)]*)\)", text)
        names = [n.strip() for n in named[1].split(",")] if named else []
        dims = [n for n in signature.dims if re.sub(r"\W", "_", n) in names]
        return ModelError(
            what="the model doesn't take every size of dim " + " and ".join(f"'{d}'" for d in dims),
            where=where,
            expected=", ".join(
                f"{signature.dims[d].min} <= {d} <= {signature.dims[d].max}" for d in dims
            ),
            got="; ".join(CONSTRAINT.findall(text)[:3]),
            remedy="write the model without that size (x.shape[i] as it is, -1 in a reshape), or "
            "narrow the dim in the spec",
        )
    return ModelError(
        what="torch.export can't capture the model",
        where=where,
        cause=first_line(first),
        remedy="see torch.export's documentation of what it captures; or use `script`",
    )


def _refuse_mutation_in(program: torch.export.ExportedProgram) -> None:
    """Refuse updates of buffers that are in the graph, also on branches the example took not."""
    graph_signature = program.graph_signature
    mutated = list(graph_signature.buffers_to_mutate.values())
    held = {**graph_signature.inputs_to_buffers, **graph_signature.inputs_to_parameters}
    for node in program.graph.nodes:
        schema = getattr(node.target, "_schema", None)
        if schema is None or not schema.is_mutable:
            continue
        for argument, value in zip(schema.arguments, node.args, strict=False):
            if argument.alias_info is not None and argument.alias_info.is_write:
                mutated += [n for n in (held.get(alias_root(value).name),) if n]
    refuse_mutation([name.removeprefix("module.") for name in dict.fromkeys(mutated)])


def _check_dims(program: torch.export.ExportedProgram, signature: Signature) -> None:
    """Every declared size is a symbol with at least the declared range."""
    user_inputs = set(program.graph_signature.user_inputs)
    nodes = [n for n in program.graph.nodes if n.op == "placeholder" and n.name in user_inputs]
    for node, (name, spec) in zip(nodes, signature.tensors.items(), strict=True):
        for axis, size in enumerate(spec.shape):
            dim = signature.dims.get(size) if isinstance(size, str) else None
            if dim is None or dim.fixed:
                continue
            got = node.meta["val"].shape[axis]
            symbol = getattr(getattr(got, "node", None), "expr", None)
            limits = program.range_constraints.get(symbol) if symbol is not None else None
            # torch treats 0 and 1 apart inside; a lower bound up to 2 takes the sizes below too.
            if limits is not None and (limits.lower <= max(dim.min, 2) and limits.upper >= dim.max):
                continue
            raise PassError(
                what=f"torch.export narrowed dim '{size}'",
                where=f"input '{name}', axis {axis}",
                expected=f"{dim.min} to {dim.max}",
                got=f"{limits.lower} to {limits.upper}" if limits else str(got),
                remedy=f"narrow dims.{size} in the spec, or write the model without that size",
            )


def _check_smallest(model: Eager, exported: Exported, feeds: Feeds, sizes: dict[str, int]) -> None:
    """A size of 1 is where captured programs break most often: try it (pytorch/pytorch#157621)."""
    smallest = {name: model.signature.dims[name].min for name in sizes}
    if 1 not in [size for name, size in smallest.items() if not model.signature.dims[name].fixed]:
        return
    small = resized(feeds, model.signature, smallest)
    _, expected = changed_buffers(model, small)
    try:
        got = exported.run(small)
    except Exception as error:
        raise PassError(
            what="the exported program refuses a size that the spec declares",
            expected=_text(smallest),
            cause=first_line(error),
        ) from error
    for name, value in expected.items():
        if not np.allclose(as_float64(value), as_float64(got[name]), equal_nan=True, **CLOSE):
            raise PassError(
                what=f"output '{name}' of the exported program is wrong at size 1",
                where=_text(smallest),
            )
