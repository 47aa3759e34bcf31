"""What an ONNX model holds that a simplification must not lose or multiply."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

import onnx

from megacompile.models import onnxfile
from megacompile_passes.onnx_graphs.streaming import tensor_bytes


@dataclass(frozen=True)
class Content:
    """Figures of a model to compare before and after."""

    elements: int
    """Numbers in all weights."""
    largest: int
    """Bytes of the largest weight."""
    operators: Counter[str]

    @classmethod
    def of(cls, model: onnx.ModelProto) -> Content:
        """The figures of a model, of all its graphs."""
        tensors = list(onnxfile.weights(model).values())
        names = (node.op_type for node in onnxfile.all_nodes(model))
        return cls(
            elements=sum(math.prod(t.dims) for t in tensors),
            largest=max((tensor_bytes(t) for t in tensors), default=0),
            operators=Counter(name for name in names if name != "Constant"),
        )

    @property
    def nodes(self) -> int:
        """How many nodes there are, constants aside."""
        return self.operators.total()

    def objection(self, after: Content, excess: int, ratio: float) -> str | None:
        """Why the result can't be used; None if it can."""
        if excess > 0:
            return f"simplify grew the model x{ratio:.1f}"
        # Folded tables of a few numbers are welcome; a weight that appears twice is not.
        if after.elements > self.elements * 1.01 + 16:
            return f"simplify unties weights: {self.elements} parameters become {after.elements}"
        for name in ("QuantizeLinear", "DequantizeLinear"):
            before, left = self.operators[name], after.operators[name]
            if left < before:
                return f"simplify undoes quantization: {before} {name} become {left}"
        return None
