"""Kinds of ONNX operators that several passes ask for."""

from __future__ import annotations

import onnx

from megacompile.models import onnxfile

# Products with weights: what gains from fewer bits.
PRODUCTS = {"MatMul", "Gemm", "Conv", "ConvTranspose"}
PRODUCT = "MatMul/Gemm/Conv node"
"""What a report calls one of them."""
# Operators that hand a tensor on with the same numbers in another order or shape.
VIEWS = {"Transpose", "Reshape", "Identity", "Squeeze", "Unsqueeze", "Flatten"}
# What a dynamic or integer quantizer writes in a product's place.
INTEGER = {
    "MatMulInteger",
    "ConvInteger",
    "DynamicQuantizeLSTM",
    "QAttention",
    "QLinearMatMul",
    "QLinearConv",
    "QGemm",
    "DynamicQuantizeMatMul",
    "MatMulIntegerToFloat",
    "MatMulNBits",
}


def is_quantized(model: onnx.ModelProto) -> bool:
    """Whether some node, of any graph, computes with or reads integers of a quantizer."""
    quantized = INTEGER | {"DequantizeLinear"}
    return any(node.op_type in quantized for node in onnxfile.all_nodes(model))
