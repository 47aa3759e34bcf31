"""`simplify` on an ONNX file: onnxsim, with what it is known to do wrong prevented or undone."""

from __future__ import annotations

from typing import ClassVar

import onnx

from megacompile.models import Onnx, onnxfile
from megacompile.plan import PassContext, Result, Sites
from megacompile_passes.graph.simplify.onnx_content import Content
from megacompile_passes.graph.simplify.onnx_simplifier import simplified
from megacompile_passes.graph.simplify.options import Simplify
from megacompile_passes.onnx_graphs.fields import replace
from megacompile_passes.onnx_graphs.streaming import tensor_bytes, write_streamed
from megacompile_passes.onnx_graphs.stripping import Stripped, overridable, put_back, strip

# Above this size the large tensors are taken out first: onnxsim passes the model as one message,
# several times over, so memory runs out well before protobuf's 2 GiB.
STRIP_BYTES = 512 * 2**20
# In a model that is stripped, tensors of this size go; smaller ones may decide what can be folded.
LARGE_TENSOR_BYTES = 64 * 2**10
# Growth that is never held against a simplification: folded shapes, position tables, names.
FREE_GROWTH = 10**6


class SimplifyOnnx(Simplify[Onnx, Onnx]):
    """onnxsim's clean-ups, thrown away where they make the model larger or untie weights."""

    libraries: ClassVar[tuple[str, ...]] = ("onnx", "onnxsim")

    def run(self, model: Onnx, ctx: PassContext) -> Result[Onnx]:
        size = onnxfile.size_bytes(model.path)
        large = size > STRIP_BYTES
        source = onnxfile.read(model.path, weights=not large)
        before = Content.of(source)
        defaults = set(overridable(source))

        allowance = int((self.growth - 1) * size) + FREE_GROWTH
        notes: list[str] = []
        target = ctx.work / "model.onnx"
        # A weight folded for one of its users becomes a second weight: the tie is lost
        # (onnxslim/onnxslim#28, microsoft/onnxscript#2025). The second try hides all weights,
        # as is done with large ones; onnxsim's own option for that crashes on some models.
        for fold_weights in (True, False):
            hidden = LARGE_TENSOR_BYTES if large else None
            taken, working = _hide(source, defaults, hidden if fold_weights else 0)
            result, note = simplified(working, max(allowance, before.largest))
            _restore(result, source, taken)
            after = Content.of(result)
            write_streamed(result, model.path.parent, target)
            grown = onnxfile.size_bytes(target)
            reason = before.objection(after, grown - size - allowance, grown / size)
            if reason is None:
                break
            way_out = "weights are left unfolded" if fold_weights else "kept the original"
            notes.append(f"{reason}; {way_out}")
        notes += [note] if note else []
        if reason is not None:
            _discard(ctx)
            return Result(model, Sites("node", before.nodes, 0), notes)
        removed = sum((before.operators - after.operators).values())
        if large:
            notes.append(
                f"{len(taken.tensors)} tensors of more than {LARGE_TENSOR_BYTES} bytes "
                "were out of the graph meanwhile: none of them was folded"
            )
        if defaults:
            notes.append("inputs with a default stay inputs: " + ", ".join(sorted(defaults)))
        if not removed:
            _discard(ctx)
            return Result(model, Sites("node", before.nodes, 0), [*notes, "nothing to simplify"])
        return Result(Onnx(target, model.signature), Sites("node", before.nodes, removed), notes)


def _hide(
    source: onnx.ModelProto, defaults: set[str], larger_than: int | None
) -> tuple[Stripped, onnx.ModelProto]:
    """A copy without overridable tensors and without floats of more than so many bytes."""
    working = onnx.ModelProto()
    working.CopyFrom(source)

    def wanted(tensor: onnx.TensorProto) -> bool:
        if tensor.name in defaults:
            return True
        if larger_than is None:
            return False
        # Small integers are shapes and axes, which decide what can be folded.
        weight = tensor.data_type in onnxfile.FLOATS and len(tensor.dims) > 1
        return (weight or larger_than > 0) and tensor_bytes(tensor) > larger_than

    return strip(working, wanted), working


def _restore(result: onnx.ModelProto, source: onnx.ModelProto, taken: Stripped) -> None:
    """Inputs, outputs and metadata as they were: onnxsim narrows shapes and adds entries."""
    put_back(result, taken)
    replace(result.graph.output, source.graph.output)
    replace(result.metadata_props, source.metadata_props)
    result.graph.name = source.graph.name


def _discard(ctx: PassContext) -> None:
    for path in ctx.work.glob("model.onnx*"):
        path.unlink()
