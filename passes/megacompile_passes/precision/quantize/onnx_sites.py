"""Which nodes of an ONNX graph quantization is about, and which of them must stay in float."""

from __future__ import annotations

import numpy as np
import onnx

from megacompile.models import onnxfile
from megacompile_passes.onnx_graphs.dataflow import (
    all_producers,
    constants,
    origin,
    producers,
    values,
)
from megacompile_passes.onnx_graphs.operators import PRODUCTS

RECURRENT = {"LSTM", "GRU", "RNN"}
# A number that a mask adds to what softmax must ignore.
MASK = 1e4


def is_attention(model: onnx.ModelProto) -> bool:
    """Softmax whose result is multiplied by values: NNCF smooths outlier channels of these."""
    softmax = {n.output[0] for n in model.graph.node if n.op_type == "Softmax"}
    return any(n.op_type == "MatMul" and softmax & set(n.input) for n in model.graph.node)


def candidates(model: onnx.ModelProto, method: str) -> list[onnx.NodeProto]:
    """Products and recurrent cells of all graphs; embeddings where only weights are meant."""
    tables = {name for name, tensor in constants(model).items() if _is_table(tensor)}
    operators = PRODUCTS | RECURRENT
    found = []
    for node in onnxfile.all_nodes(model):
        embedding = node.op_type == "Gather" and node.input[0] in tables
        if node.op_type in operators or (embedding and method == "weight-only"):
            found.append(node)
    return found


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
    makers = all_producers(model)
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
            tensors = [known[name] for name in node.input if name in known]
            if any(_reaches_mask(tensor) for tensor in tensors):
                found.add(node.name)
    return [node.name for node in model.graph.node if node.name in found]


def _reaches_mask(tensor: onnx.TensorProto) -> bool:
    if tensor.data_type != onnx.TensorProto.FLOAT:
        return False
    return bool(np.abs(values(tensor)).max(initial=0) >= MASK)
