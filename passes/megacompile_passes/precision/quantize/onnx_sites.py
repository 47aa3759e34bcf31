"""Which nodes of an ONNX graph quantization is about, and which of them it reached."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx

from megacompile.models import onnxfile
from megacompile.plan import Sites
from megacompile_passes.onnx_graphs.nodes import VIEWS, constants, origin, producers, values

KIND = "MatMul/Gemm/Conv node"
PRODUCTS = {"MatMul", "Gemm", "Conv", "ConvTranspose"}
RECURRENT = {"LSTM", "GRU", "RNN"}
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
LEFT = "the quantizer left it in float, as NNCF does in squeeze-and-excitation and attention"
# A number that a mask adds to what softmax must ignore.
MASK = 1e4


def is_quantized(model: onnx.ModelProto) -> bool:
    return any(
        n.op_type in INTEGER or n.op_type == "DequantizeLinear" for n in onnxfile.all_nodes(model)
    )


def is_attention(model: onnx.ModelProto) -> bool:
    """Softmax whose result is multiplied by values: NNCF smooths outlier channels of these."""
    softmax = {n.output[0] for n in model.graph.node if n.op_type == "Softmax"}
    return any(n.op_type == "MatMul" and softmax & set(n.input) for n in model.graph.node)


def candidates(model: onnx.ModelProto, method: str) -> list[onnx.NodeProto]:
    """Products and recurrent cells of all graphs; embeddings where only weights are meant."""
    known = constants(model)
    return [
        n
        for n in onnxfile.all_nodes(model)
        if n.op_type in PRODUCTS | RECURRENT
        or (
            method == "weight-only"
            and n.op_type == "Gather"
            and n.input[0] in known
            and _is_table(known[n.input[0]])
        )
    ]


def _is_table(tensor: onnx.TensorProto) -> bool:
    return tensor.data_type == onnx.TensorProto.FLOAT and len(tensor.dims) == 2


def refusals(
    model: onnx.ModelProto,
    sites: list[onnx.NodeProto],
    kept: set[str],
    method: str,
    defaults: set[str],
) -> dict[str, str]:
    """Why a site must stay in float, by node name."""
    known = constants(model)
    makers = _makers(model)
    top_level = {n.name for n in model.graph.node}
    found: dict[str, str] = {}
    for node in sites:
        sources = {origin(name, makers) for name in node.input}
        overridden = sorted(sources & defaults)
        weights = [known[s] for s in sources if s in known]
        if node.name in kept:
            found[node.name] = "named by `keep`"
        elif overridden:
            found[node.name] = f"its weight '{overridden[0]}' is an input that callers may override"
        elif method == "static" and node.name not in top_level:
            found[node.name] = "inside a body of If, Loop or Scan, which NNCF leaves alone"
        elif method == "weight-only" and node.op_type in RECURRENT:
            found[node.name] = "weights of recurrent cells stay in float"
        elif weights and all(t.data_type != onnx.TensorProto.FLOAT for t in weights):
            found[node.name] = "its weight is not float32"
        elif method != "static" and not weights:
            found[node.name] = "both operands are activations"
        elif method == "dynamic" and node.op_type in ("Conv", "ConvTranspose"):
            found[node.name] = (
                "ONNX Runtime has no kernel for dynamic int8 convolutions; use method: static"
            )
    return found


def fragile_nodes(model: onnx.ModelProto) -> list[str]:
    """Nodes that bring a mask to the scores of a softmax (pytorch/executorch#20471).

    A mask adds -1e4 or less; 8 bits over such a range leave nothing for the scores.
    """
    makers = producers(model.graph)
    known = constants(model)
    found: set[str] = set()
    for node in model.graph.node:
        if node.op_type == "Softmax":
            waiting = [node.input[0]]
            while waiting:
                above = makers.get(origin(waiting.pop(), makers))
                if above is not None and above.op_type in ("Add", "Where", "Sub"):
                    found.update((above.name, node.name))
                    waiting.extend(above.input)
        if node.op_type in ("Add", "Sub", "Mul", "Where", "Max", "Min", "Clip"):
            extremes = [
                values(known[i])
                for i in node.input
                if i in known and known[i].data_type == onnx.TensorProto.FLOAT
            ]
            if any(array.size and np.abs(array).max() >= MASK for array in extremes):
                found.add(node.name)
    return [node.name for node in model.graph.node if node.name in found]


def survey(
    source: onnx.ModelProto,
    result: onnx.ModelProto,
    sites: list[onnx.NodeProto],
    reasons: dict[str, str],
) -> Sites:
    """Read off the result which sites really are quantized."""
    report = Sites(KIND)
    by_name = {n.name: n for n in onnxfile.all_nodes(result)}
    makers = _makers(result)
    integer = {
        t.name for t in onnxfile.weights(result).values() if t.data_type in onnxfile.QUANTIZED
    }
    known = constants(source)
    source_makers = _makers(source)
    for node in sites:
        now = by_name.get(node.name)
        weights = [
            i for i, name in enumerate(node.input[:2]) if origin(name, source_makers) in known
        ]
        if now is None:
            replaced = (f"{node.name}{suffix}" for suffix in ("_quant", "_MatMul_quant"))
            done = any(r in by_name and by_name[r].op_type in INTEGER for r in replaced)
        elif now.op_type == "Gather":
            done = now.input[0] in integer
        else:
            places = weights if len(weights) == 1 else [0, 1]
            done = now.op_type in INTEGER or all(_dequantized(now.input[i], makers) for i in places)
        if done:
            report.change()
        else:
            report.skip(node.name, reasons.get(node.name, LEFT))
    for name, reason in reasons.items():
        if name not in {n.name for n in sites}:
            report.skipped.append((name, reason))
    return report


def untied(
    source: onnx.ModelProto, result: onnx.ModelProto, sites: list[onnx.NodeProto], report: Sites
) -> list[str]:
    """Weights of quantized sites that another node still reads in float: stored twice now."""
    makers = _makers(source)
    floats = {
        n
        for n, t in onnxfile.weights(result).items()
        if t.data_type == onnx.TensorProto.FLOAT and len(t.dims) > 1
    }
    left = {name for name, _ in report.skipped}
    changed = {origin(i, makers) for node in sites if node.name not in left for i in node.input}
    return sorted(floats & changed)


def _makers(model: onnx.ModelProto) -> dict[str, onnx.NodeProto]:
    made: dict[str, onnx.NodeProto] = {}
    for graph in onnxfile.all_graphs(model):
        made.update(producers(graph))
    return made


def _dequantized(name: str, makers: dict[str, Any]) -> bool:
    while name in makers and makers[name].op_type in VIEWS:
        name = makers[name].input[0]
    return name in makers and makers[name].op_type == "DequantizeLinear"
