"""Which nodes of an ONNX graph a quantizer reached, and what it stored twice."""

from __future__ import annotations

import onnx

from megacompile.models import onnxfile
from megacompile.plan import Sites
from megacompile_passes.onnx_graphs.dataflow import all_producers, constants, origin
from megacompile_passes.onnx_graphs.operators import INTEGER, PRODUCT

LEFT = "the quantizer left it in float, as NNCF does in squeeze-and-excitation and attention"


def survey(
    source: onnx.ModelProto,
    result: onnx.ModelProto,
    sites: list[onnx.NodeProto],
    reasons: dict[str, str],
) -> Sites:
    """Read off the result which sites really are quantized."""
    report = Sites(PRODUCT)
    known = constants(source)
    makers = all_producers(source)
    quantized = _Quantized(result)
    for node in sites:
        operands = [i for i, name in enumerate(node.input[:2]) if origin(name, makers) in known]
        if quantized.has(node, weights=operands):
            report.change()
        else:
            report.skip(node.name, reasons.get(node.name, LEFT))
    names = {node.name for node in sites}
    report.skipped += [(name, why) for name, why in reasons.items() if name not in names]
    return report


class _Quantized:
    """A quantizer's result, to look nodes of its source up in."""

    def __init__(self, model: onnx.ModelProto) -> None:
        weights = onnxfile.weights(model).values()
        self.integers = {t.name for t in weights if t.data_type in onnxfile.QUANTIZED}
        self.nodes = {node.name: node for node in onnxfile.all_nodes(model)}
        self.makers = all_producers(model)

    def has(self, node: onnx.NodeProto, weights: list[int]) -> bool:
        """Whether a node computes with integers now; `weights` are its constant operands."""
        now = self.nodes.get(node.name)
        if now is None:
            replaced = (f"{node.name}{suffix}" for suffix in ("_quant", "_MatMul_quant"))
            return any(r in self.nodes and self.nodes[r].op_type in INTEGER for r in replaced)
        if now.op_type == "Gather":
            return now.input[0] in self.integers
        if now.op_type in INTEGER:
            return True
        operands = weights if len(weights) == 1 else [0, 1]
        return all(self._dequantized(now.input[i]) for i in operands)

    def _dequantized(self, name: str) -> bool:
        maker = self.makers.get(origin(name, self.makers))
        return maker is not None and maker.op_type == "DequantizeLinear"


def untied(
    source: onnx.ModelProto, result: onnx.ModelProto, sites: list[onnx.NodeProto], report: Sites
) -> list[str]:
    """Weights of quantized sites that another node still reads in float: stored twice now."""
    makers = all_producers(source)
    left = {name for name, _ in report.skipped}
    changed = {origin(i, makers) for node in sites if node.name not in left for i in node.input}
    weights = onnxfile.weights(result).items()
    floats = {n for n, t in weights if t.data_type == onnx.TensorProto.FLOAT and len(t.dims) > 1}
    return sorted(floats & changed)
