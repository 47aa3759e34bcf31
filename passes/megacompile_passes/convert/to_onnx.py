"""Write an exported program as an ONNX file, its weights beside it, once each."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Literal

from megacompile.errors import PassError
from megacompile.models import Exported, Onnx, Signature
from megacompile.plan import Effect, Fact, Pass, PassContext, Result, Sites, Traits
from megacompile_passes.convert.onnx_exporter import export_onnx
from megacompile_passes.convert.onnx_repairs import repair

# torch's own table of operators is written for this opset; newer ones are a conversion away.
DEFAULT_OPSET = 18


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
        program = export_onnx(model, wanted)
        notes = repair(program, model.signature)
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


def _save(model: Any, path: Path) -> None:
    """Write the graph, and the tensors one after the other: no second copy of all weights."""
    import onnx_ir

    from megacompile.models import onnxfile

    data = path.with_name(path.name + onnxfile.DATA_SUFFIX)
    data.unlink(missing_ok=True)
    threshold = onnxfile.EXTERNAL_BYTES
    onnx_ir.save(model, str(path), external_data=data.name, size_threshold_bytes=threshold)


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
