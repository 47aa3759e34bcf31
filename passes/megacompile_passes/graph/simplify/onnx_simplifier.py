"""onnxsim, asked for what it can do to a model without harm."""

from __future__ import annotations

import math
from typing import Any

import onnx

from megacompile.errors import PassError
from megacompile.models import onnxfile, quiet
from megacompile_passes.messages import first_line

# Constant folding computes what lies between, however small the end result is.
LARGEST_INTERMEDIATE = 256 * 2**20


def simplified(model: onnx.ModelProto, threshold: int) -> tuple[onnx.ModelProto, str | None]:
    """The simplified model, and a note if only a part of onnxsim copes with it.

    Constants of more than `threshold` bytes aren't made.

    Raises:
        PassError: onnxsim can't read or simplify the model, or the model is too large for it.
    """
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
    computed: set[str] = set()
    for node in model.graph.node:
        if set(node.input) <= constant | computed and not node.op_type.startswith("Random"):
            computed.update(node.output)
    types = [v.type.tensor_type for v in inferred.graph.value_info if v.name in computed]
    return max((_bytes(one) for one in types if one.elem_type), default=0)


def _bytes(type_: onnx.TypeProto.Tensor) -> int:
    itemsize = onnx.helper.tensor_dtype_to_np_dtype(type_.elem_type).itemsize
    return math.prod(dim.dim_value for dim in type_.shape.dim) * int(itemsize)
