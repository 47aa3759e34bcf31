"""Write an exported program as an ONNX file, its weights beside it, once each."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NoReturn

from megacompile.errors import PassError
from megacompile.models import Exported, Onnx, Signature, quiet
from megacompile.plan import Effect, Fact, Pass, PassContext, Result, Sites, Traits
from megacompile_passes.modules.tracing import first_line
from megacompile_passes.programs.recurrence import symbolic_recurrence

if TYPE_CHECKING:
    import torch

# torch's own table of operators is written for this opset; newer ones are a conversion away.
DEFAULT_OPSET = 18
TRACES = ("pkg.torch.onnx.stack_trace", "pkg.torch.onnx.fx_node", "pkg.torch.onnx.class_hierarchy")
NODE = re.compile(r"%(\w+) .*?target=([\w.:]+)")


class ToOnnx(Pass[Exported, Onnx]):
    """torch.onnx's exporter on an exported program."""

    name: ClassVar[str] = "to-onnx"
    effect: ClassVar[Effect] = Effect.EXACT
    requires: ClassVar[frozenset[Fact]] = frozenset({Fact.UNQUANTIZED})
    provides: ClassVar[frozenset[Fact]] = frozenset()
    invalidates: ClassVar[frozenset[Fact]] = frozenset({Fact.TRAINABLE})
    insertable: ClassVar[bool] = True
    libraries: ClassVar[tuple[str, ...]] = ("onnx", "onnxscript")

    opset: Literal["auto"] | int = "auto"

    def resolve(self, traits: Traits) -> ToOnnx:
        if self.opset != "auto":
            return self
        return self.model_copy(update={"opset": traits.opset or DEFAULT_OPSET})

    def run(self, model: Exported, ctx: PassContext) -> Result[Onnx]:
        wanted = self.resolve(ctx.traits).opset
        assert isinstance(wanted, int)
        program = _convert(model, wanted)
        notes = _share_equal_weights(program)
        _turn_shared_weights(program.model)
        _free_names(program.model)
        _name_sizes(program.model, model.signature)
        _strip_traces(program.model)
        path = ctx.work / "model.onnx"
        _save(program.model, path)
        opset = program.model.opset_imports.get("", wanted)
        if opset != wanted:
            notes.append(f"opset {opset}: conversion to {wanted} is not possible for this graph")
        onnx_form = Onnx(path, model.signature)
        _check_interface(program.model, model.signature)
        _check_size(onnx_form, model)
        sites = Sites("operator")
        sites.matched = sites.changed = sum(1 for _ in program.model.graph)
        return Result(onnx_form, sites, [f"opset {opset}", *notes])


def _convert(model: Exported, opset: int) -> torch.onnx.ONNXProgram:
    import torch

    try:
        with quiet(), symbolic_recurrence(), torch.no_grad():
            program = torch.onnx.export(
                model.program,
                (),
                dynamo=True,
                opset_version=opset,
                optimize=True,
                verbose=False,
                input_names=list(model.signature.tensors),
                output_names=list(model.signature.outputs),
            )
    except Exception as error:  # noqa: BLE001 - the exporter wraps whatever it met
        _explain(error, model)
    assert program is not None
    return program


def _explain(error: Exception, model: Exported) -> NoReturn:
    """Name the operator and the module that the exporter stumbled over."""
    chain: list[BaseException] = [error]
    while chain[-1].__cause__ is not None:
        chain.append(chain[-1].__cause__)
    text = "\n".join(map(str, chain))
    named = NODE.search(text)
    node = next((n for n in model.program.graph.nodes if named and n.name == named[1]), None)
    if node is None:
        targets = re.findall(r"torch\.ops\.([\w.]+)", text) + re.findall(
            r"OpOverload\(op='([\w.]+)'", text
        )
        node = next(
            (
                n
                for n in model.program.graph.nodes
                for t in targets
                if n.op == "call_function" and str(n.target).startswith(t)
            ),
            None,
        )
    missing = any(type(e).__name__ == "DispatchError" for e in chain)
    raise PassError(
        what=(
            f"ONNX has no counterpart of operator '{node.target}'"
            if missing and node is not None
            else "torch's ONNX exporter failed"
            + (f" at operator '{node.target}'" if node is not None else "")
        ),
        where=_module_path(node) if node is not None else None,
        cause=first_line(chain[-1]),
        remedy="write that part with other operators, or use a backend that takes the exported "
        "program itself (aotinductor)",
    ) from error


def _module_path(node: torch.fx.Node) -> str:
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    path = str(stack[-1][0]).split("module.", 1)[-1] if stack else ""
    return f"module '{path}', node '{node.name}'" if path else f"node '{node.name}'"


def _share_equal_weights(program: torch.onnx.ONNXProgram) -> list[str]:
    """Undo copies of one weight that the exporter listed twice (pytorch/pytorch#108342).

    Tensors are compared by storage, never by content: no weight is read.
    """
    import onnx_ir

    graph = program.model.graph
    first: dict[tuple[Any, ...], onnx_ir.Value] = {}
    shared = 0
    for value in list(graph.initializers.values()):
        raw = getattr(value.const_value, "raw", None)
        if raw is None or not hasattr(raw, "untyped_storage") or raw.numel() < 2:
            continue
        key = (
            raw.untyped_storage().data_ptr(),
            raw.storage_offset(),
            raw.dtype,
            tuple(raw.shape),
            raw.stride(),
        )
        kept = first.setdefault(key, value)
        if kept is value or value.is_graph_output() or value.is_graph_input():
            continue
        value.replace_all_uses_with(kept)
        assert value.name is not None
        del graph.initializers[value.name]
        shared += 1
    return [f"{shared} copies of shared weights removed"] if shared else []


def _turn_shared_weights(model: Any) -> None:
    """Store a weight the way round that all its users read it.

    The exporter turns a weight of one user over and leaves one of several users behind a
    Transpose, where quantizers don't find it.
    """
    import numpy as np
    import onnx_ir

    for value in list(model.graph.initializers.values()):
        turns = [use.node for use in value.uses()]
        orders = {
            tuple(one.attributes.get_ints("perm", ())) if one.op_type == "Transpose" else None
            for one in turns
        }
        if len(orders) != 1 or None in orders or orders == {()}:
            continue
        outer = any(one.graph is not model.graph for one in turns)
        if outer or value.is_graph_input() or any(o.outputs[0].is_graph_output() for o in turns):
            continue
        (order,) = orders
        assert order is not None
        turned = np.ascontiguousarray(value.const_value.numpy().transpose(order))
        value.const_value = onnx_ir.tensor(turned, dtype=value.const_value.dtype, name=value.name)
        value.shape = onnx_ir.Shape(turned.shape)
        for one in turns:
            one.outputs[0].replace_all_uses_with(value)
            model.graph.remove(one, safe=True)


def _free_names(model: Any) -> None:
    """Rename inner values that bear an input's or output's name: the exporter gives outputs
    their names without looking (an operator `embedding` and an output `embedding`)."""
    ends = [*model.graph.inputs, *model.graph.outputs]
    taken = {value.name for value in ends}
    for node in model.graph:
        for value in node.outputs:
            if value.name in taken and not any(value is end for end in ends):
                number = 1
                while f"{value.name}_inner_{number}" in taken:
                    number += 1
                value.name = f"{value.name}_inner_{number}"
            if value.name:
                taken.add(value.name)


def _name_sizes(model: Any, signature: Signature) -> None:
    """Give dynamic sizes the spec's names in place of torch's symbols (s0, s77)."""
    import onnx_ir

    names: dict[str, str] = {}
    for value in model.graph.inputs:
        spec = signature.tensors.get(value.name)
        if spec is None or value.shape is None:
            continue
        for axis, size in enumerate(spec.shape):
            symbol = value.shape[axis]
            if isinstance(size, str) and isinstance(symbol, onnx_ir.SymbolicDim) and symbol.value:
                names[str(symbol.value)] = size

    def renamed(text: str) -> str:
        return re.sub(r"[A-Za-z_]\w*", lambda found: names.get(found[0], found[0]), text)

    values = [*model.graph.inputs, *(v for node in model.graph for v in node.outputs)]
    for value in values:
        if value.shape is None or value.shape.frozen:
            continue
        for axis, size in enumerate(value.shape):
            if isinstance(size, onnx_ir.SymbolicDim) and size.value:
                value.shape[axis] = onnx_ir.SymbolicDim(renamed(str(size.value)))


def _strip_traces(model: Any) -> None:
    """Drop source lines and paths of the machine that exported; module paths stay."""
    for node in model.graph.all_nodes():
        for key in TRACES:
            node.metadata_props.pop(key, None)


def _save(model: Any, path: Path) -> None:
    """Write the graph, and the tensors one after the other: no second copy of all weights."""
    import onnx_ir

    from megacompile.models import onnxfile

    data = path.with_name(path.name + onnxfile.DATA_SUFFIX)
    data.unlink(missing_ok=True)
    onnx_ir.save(
        model, str(path), external_data=data.name, size_threshold_bytes=onnxfile.EXTERNAL_BYTES
    )


def _check_interface(model: Any, signature: Signature) -> None:
    outputs = [v.name for v in model.graph.outputs]
    inputs = [v.name for v in model.graph.inputs]
    if outputs != list(signature.outputs) or inputs != list(signature.tensors):
        raise PassError(
            what="the ONNX file has other inputs or outputs than the model",
            expected=f"{list(signature.tensors)} -> {list(signature.outputs)}",
            got=f"{inputs} -> {outputs}",
            audience="megacompile",
        )


def _check_size(made: Onnx, model: Exported) -> None:
    """The exporter's folding may store a weight twice, once turned over."""
    before, after = model.size_bytes(), made.size_bytes()
    if after > 1.1 * before + 2_000_000:
        raise PassError(
            what=f"the ONNX file is {after / max(before, 1):.1f} times the model",
            expected=f"about {before} bytes",
            got=f"{after} bytes",
            cause="a weight is stored more than once",
            audience="megacompile",
        )
