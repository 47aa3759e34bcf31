"""Operations and bytes of an ONNX file, from its graph and inferred shapes; nothing runs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import onnx
import onnx.inliner
import onnx.shape_inference
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from megacompile.errors import ModelError
from megacompile.measure.operations import OperationCount

Shape = tuple[int | None, ...]

# Tensors at least this large aren't shapes that shape inference would want to read.
_LARGE_TENSOR: Final = 64 * 1024
# These rename a tensor, they don't move it.
_VIEWS: Final = frozenset({"Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity"})
_NOT_COUNTED: Final = frozenset(
    {
        "Einsum",
        "DeformConv",
        "Attention",
        "MultiHeadAttention",
        "FusedMatMul",
        "FusedGemm",
        "MatMulNBits",
        "FusedConv",
        "QAttention",
        "DynamicQuantizeLSTM",
    }
)


def count_onnx(path: Path, dims: Mapping[str, int]) -> OperationCount:
    """Count one call of an ONNX file with its symbolic sizes set to `dims`.

    External weights aren't read, only their shapes. Nodes in the bodies of If, Loop and Scan
    count once; `note` says so, and names what couldn't be counted. ModelError when the file
    isn't a readable model.
    """
    try:
        model = onnx.load(str(path), load_external_data=False)
        model = _with_shapes(model, dims)
    except (OSError, DecodeError, onnx.shape_inference.InferenceError) as error:
        raise ModelError(
            what="can't read the ONNX model to count its operations",
            where=str(path),
            cause=str(error),
        ) from error
    return _OnnxCounter(model).count()


def _with_shapes(model: onnx.ModelProto, dims: Mapping[str, int]) -> onnx.ModelProto:
    """The model with symbolic sizes set, local functions inlined, and shapes inferred."""
    if model.functions:
        model = onnx.inliner.inline_local_functions(model)
    for graph, _ in _graphs(model.graph):
        for value in (*graph.input, *graph.output, *graph.value_info):
            for dimension in value.type.tensor_type.shape.dim:
                if dimension.dim_param in dims:
                    dimension.dim_value = dims[dimension.dim_param]
        for tensor in graph.initializer:
            if len(tensor.raw_data) >= _LARGE_TENSOR:  # inference copies the whole model
                tensor.ClearField("raw_data")
    # data_prop follows sizes that the graph computes itself (Shape, Gather, Concat, Reshape).
    return onnx.shape_inference.infer_shapes(model, data_prop=True)


def _graphs(main: onnx.GraphProto) -> Iterator[tuple[onnx.GraphProto, bool]]:
    """The main graph and every body within, with whether it's a body. Depth costs no stack."""
    pending = [(main, False)]
    while pending:
        graph, is_body = pending.pop()
        yield graph, is_body
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    pending.append((attribute.g, True))
                pending.extend((body, True) for body in attribute.graphs)


class _OnnxCounter:
    """Adds up one model whose shapes are known. Names are unique across its graphs (SSA)."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = model
        self.shapes: dict[str, Shape] = {}
        self.types: dict[str, int] = {}
        self.weights: set[str] = set()
        self.touched: Counter[str] = Counter()
        self.body_nodes = 0
        self.uncounted: Counter[str] = Counter()
        self.unsized = 0

    def count(self) -> OperationCount:
        graphs = list(_graphs(self.model.graph))
        for graph, _ in graphs:
            self._learn(graph)
        operations = written = 0
        for graph, is_body in graphs:
            self.body_nodes += len(graph.node) if is_body else 0
            for node in graph.node:
                operations += self._operations(node)
                written += self._traffic(node)
        main = self.model.graph
        ends = [value.name for value in (*main.input, *main.output)]
        return OperationCount(
            operations=operations,
            weight_bytes=self._weight_bytes(),
            activation_bytes=written,
            io_bytes=sum(self._size(name) for name in ends if name not in self.weights),
            note=self._note(),
        )

    def _learn(self, graph: onnx.GraphProto) -> None:
        for value in (*graph.value_info, *graph.input, *graph.output):
            tensor = value.type.tensor_type
            self.types[value.name] = tensor.elem_type
            if tensor.HasField("shape"):
                self.shapes[value.name] = tuple(
                    dim.dim_value if dim.HasField("dim_value") else None for dim in tensor.shape.dim
                )
        for tensor in graph.initializer:
            self._learn_weight(tensor.name, tensor)
        for node in graph.node:
            for attribute in node.attribute if node.op_type == "Constant" else ():
                if attribute.HasField("t"):
                    self._learn_weight(node.output[0], attribute.t)

    def _learn_weight(self, name: str, tensor: onnx.TensorProto) -> None:
        self.shapes[name], self.types[name] = tuple(tensor.dims), tensor.data_type
        self.weights.add(name)

    def _operations(self, node: onnx.NodeProto) -> int:
        kind = node.op_type
        if kind in _NOT_COUNTED:
            self.uncounted[kind] += 1
            return 0
        formula = _FORMULAS.get(kind)
        if formula is None:
            return 0
        inputs = [self.shapes.get(name, (None,)) for name in node.input]
        output = self.shapes.get(node.output[0], (None,)) if node.output[0] else ()
        try:
            return formula(node, inputs, output)
        except (TypeError, IndexError):  # a size is None, or a shape is missing altogether
            self.unsized += 1
            return 0

    def _traffic(self, node: onnx.NodeProto) -> int:
        """Bytes the node writes; notes which weights it reads."""
        if node.op_type == "Constant":
            return 0
        size = sum(self._size(name) for name in node.output)
        for name in self.weights.intersection(node.input):
            self.touched[name] += size if node.op_type == "Gather" else self._size(name)
        return 0 if node.op_type in _VIEWS else size

    def _size(self, name: str) -> int:
        shape = self.shapes.get(name)
        if shape is None:
            return 0
        known = [size for size in shape if size is not None]
        return _bytes(math.prod(known), self.types[name]) if len(known) == len(shape) else 0

    def _weight_bytes(self) -> int:
        return sum(min(count, self._size(name)) for name, count in self.touched.items())

    def _note(self) -> str | None:
        parts = []
        if self.body_nodes:
            parts.append(f"{self.body_nodes} nodes in bodies of If, Loop or Scan counted once")
        if self.uncounted:
            kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(self.uncounted.items()))
            parts.append(f"not counted: {kinds}")
        if self.unsized:
            parts.append(f"{self.unsized} matrix products of unknown size not counted")
        return "; ".join(parts) or None


def _bytes(count: int, element_type: int) -> int:
    """Bytes of `count` elements; strings and unknown types count nothing."""
    if element_type in (onnx.TensorProto.UNDEFINED, onnx.TensorProto.STRING):
        return 0
    name = onnx.TensorProto.DataType.Name(element_type)
    if name.endswith("INT4") or name == "FLOAT4E2M1":
        return (count + 1) // 2  # two to a byte
    return count * int(onnx.helper.tensor_dtype_to_np_dtype(element_type).itemsize)


def _attribute(node: onnx.NodeProto, name: str, default: int) -> int:
    return next((item.i for item in node.attribute if item.name == name), default)


# Formulas take the node and its shapes; an unknown size is None and raises TypeError in them.


def _matmul(node: Any, inputs: Any, output: Any) -> int:
    return int(2 * math.prod(output) * inputs[0][-1])


def _gemm(node: Any, inputs: Any, output: Any) -> int:
    depth = inputs[0][0 if _attribute(node, "transA", 0) else 1]
    return int(2 * math.prod(output) * depth)


def _convolution(weight: int) -> Any:
    """Each output position takes one product with a filter: [out, in / groups, *kernel]."""
    return lambda node, inputs, output: int(2 * math.prod(output) * math.prod(inputs[weight][1:]))


def _transposed_convolution(node: Any, inputs: Any, output: Any) -> int:
    """Each input position spreads over a filter: [in, out / groups, *kernel]."""
    return int(2 * math.prod(inputs[0]) * math.prod(inputs[1][1:]))


def _recurrent(node: Any, inputs: Any, output: Any) -> int:
    """Input and hidden weights, [directions, gates * hidden, ...], at every position."""
    steps, batch, _ = inputs[0]
    return int(2 * steps * batch * (math.prod(inputs[1]) + math.prod(inputs[2])))


_FORMULAS: Final[dict[str, Any]] = {
    "MatMul": _matmul,
    "MatMulInteger": _matmul,
    "QLinearMatMul": _matmul,
    "Gemm": _gemm,
    "Conv": _convolution(1),
    "ConvInteger": _convolution(1),
    "QLinearConv": _convolution(3),
    "ConvTranspose": _transposed_convolution,
    "LSTM": _recurrent,
    "GRU": _recurrent,
    "RNN": _recurrent,
}
