"""`simplify` on an ONNX file: onnxsim, with what it is known to do wrong prevented or undone."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any, ClassVar

import onnx

from megacompile.errors import PassError
from megacompile.models import Onnx, onnxfile, quiet
from megacompile.plan import PassContext, Result, Sites
from megacompile_passes.graph.simplify.options import Simplify
from megacompile_passes.onnx_graphs.nodes import first_line
from megacompile_passes.onnx_graphs.stripping import (
    Stripped,
    overridable,
    put_back,
    replace,
    strip,
    tensor_bytes,
    write_streamed,
)

# Above this size the large tensors are taken out first: onnxsim passes the model as one message,
# several times over, so memory runs out well before protobuf's 2 GiB.
STRIP_BYTES = 512 * 2**20
# In a model that is stripped, tensors of this size go; smaller ones may decide what can be folded.
LARGE_TENSOR_BYTES = 64 * 2**10
# Growth that is never held against a simplification: folded shapes, position tables, names.
FREE_GROWTH = 10**6
# Constant folding computes what lies between, however small the end result is.
LARGEST_INTERMEDIATE = 256 * 2**20


class SimplifyOnnx(Simplify[Onnx, Onnx]):
    libraries: ClassVar[tuple[str, ...]] = ("onnx", "onnxsim")

    def run(self, model: Onnx, ctx: PassContext) -> Result[Onnx]:
        size = onnxfile.size_bytes(model.path)
        large = size > STRIP_BYTES
        source = onnxfile.read(model.path, weights=not large)
        before = _Content.of(source)
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
            result, note = _simplify(working, max(allowance, before.largest))
            _restore(result, source, taken)
            after = _Content.of(result)
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


class _Content:
    """What a simplification must not lose or multiply."""

    def __init__(self, model: onnx.ModelProto) -> None:
        tensors = list(onnxfile.weights(model).values())
        self.elements = sum(math.prod(t.dims) for t in tensors)
        self.largest = max((tensor_bytes(t) for t in tensors), default=0)
        self.operators = Counter(
            n.op_type for n in onnxfile.all_nodes(model) if n.op_type != "Constant"
        )
        self.nodes = sum(self.operators.values())

    of = classmethod(lambda cls, model: cls(model))

    def objection(self, after: _Content, excess: int, ratio: float) -> str | None:
        """Why the result can't be used; None if it can."""
        if excess > 0:
            return f"simplify grew the model x{ratio:.1f}"
        # Folded tables of a few numbers are welcome; a weight that appears twice is not.
        if after.elements > self.elements * 1.01 + 16:
            return f"simplify unties weights: {self.elements} parameters become {after.elements}"
        for name in ("QuantizeLinear", "DequantizeLinear"):
            if after.operators[name] < self.operators[name]:
                return (
                    f"simplify undoes quantization: {self.operators[name]} {name} "
                    f"become {after.operators[name]}"
                )
        return None


def _hide(
    source: onnx.ModelProto, defaults: set[str], larger_than: int | None
) -> tuple[Stripped, onnx.ModelProto]:
    """A copy without overridable tensors and without floats of more than so many bytes."""
    working = onnx.ModelProto()
    working.CopyFrom(source)

    def wanted(tensor: onnx.TensorProto) -> bool:
        if larger_than is None or tensor.name in defaults:
            return tensor.name in defaults
        # Small integers are shapes and axes, which decide what can be folded.
        weight = tensor.data_type in onnxfile.FLOATS and len(tensor.dims) > 1
        return (weight or larger_than > 0) and tensor_bytes(tensor) > larger_than

    return strip(working, wanted), working


def _simplify(model: onnx.ModelProto, threshold: int) -> tuple[onnx.ModelProto, str | None]:
    """The simplified model, and a note if only a part of onnxsim copes with it."""
    import onnxsim

    if model.ByteSize() > onnxfile.MESSAGE_LIMIT:
        raise PassError(
            what="the graph is too large for onnxsim without its large weights",
            got=f"{model.ByteSize() / 1e9:.1f} GB in the bodies of If and Loop",
            expected="less than 2.1 GB",
            remedy="leave out `simplify`",
        )
    options: dict[str, Any] = {
        "tensor_size_threshold": f"{max(1, threshold // 1024)}KB",
        "skip_constant_folding": _largest_constant(model) > LARGEST_INTERMEDIATE,
        # `fold-batchnorm` does it, and says what it did.
        "skip_fuse_bn": True,
        "certify": False,
    }
    failures: list[str] = []
    # The optimizer loses the order of nodes in some models with bodies (Silero's detector).
    for optimize in (True, False):
        try:
            with quiet():
                result, _ = onnxsim.simplify(model, perform_optimization=optimize, **options)
        except (RuntimeError, ValueError, onnx.checker.ValidationError) as error:
            failures.append(first_line(error))
            continue
        if not failures:
            return result, None
        return result, f"onnxsim's optimizer fails ({failures[0]}): only constants were folded"
    raise PassError(
        what="onnxsim can't read or simplify the model",
        cause=failures[-1],
        remedy="leave out `simplify`",
    )


def _largest_constant(model: onnx.ModelProto) -> int:
    """Bytes of the largest tensor that depends on no input (onnxsim/onnxsim#178, #272)."""
    try:
        inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
    except (RuntimeError, onnx.shape_inference.InferenceError):
        return 0
    constant = {t.name for t in model.graph.initializer} | {""}
    largest = 0
    values = {v.name: v.type.tensor_type for v in inferred.graph.value_info}
    for node in model.graph.node:
        if not set(node.input) <= constant or node.op_type.startswith("Random"):
            continue
        constant.update(node.output)
        for name in node.output:
            if name in values and values[name].elem_type:
                itemsize = onnx.helper.tensor_dtype_to_np_dtype(values[name].elem_type).itemsize
                sizes = [d.dim_value for d in values[name].shape.dim]
                largest = max(largest, math.prod(sizes) * itemsize)
    return largest


def _restore(result: onnx.ModelProto, source: onnx.ModelProto, taken: Stripped) -> None:
    """Inputs, outputs and metadata as they were: onnxsim narrows shapes and adds entries."""
    put_back(result, taken)
    replace(result.graph.output, source.graph.output)
    replace(result.metadata_props, source.metadata_props)
    result.graph.name = source.graph.name


def _discard(ctx: PassContext) -> None:
    for path in ctx.work.glob("model.onnx*"):
        path.unlink()
