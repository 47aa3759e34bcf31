"""A chain of thousands of ONNX nodes through plan, build and report: is our own time linear?

    python benchmarks/nodes.py [NODES ...]

Prints, for each length, seconds of our own (outside passes, lowering and measuring) and per 1,000
nodes. Linear means that the last column stays about the same.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import onnx
from onnx import TensorProto, helper

import megacompile


def chain(path: Path, nodes: int) -> None:
    """Write Cos(x), Sin(.), Cos(.), …: nothing that a simplifier could fold."""
    made = []
    for number in range(nodes):
        kind = "Sin" if number % 2 else "Cos"
        made.append(helper.make_node(kind, [f"t{number}"], [f"t{number + 1}"]))
    names = ("t0", f"t{nodes}")
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 8]) for name in names]
    graph = helper.make_graph(made, "chain", ends[:1], ends[1:])
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), str(path))


def spec(nodes: int) -> megacompile.Spec:
    return megacompile.Spec.model_validate(
        {
            "name": f"chain{nodes}",
            "model": {"onnx": "m.onnx"},
            "dims": {"n": {"min": 1, "typical": 4, "max": 8}},
            "inputs": {"t0": {"shape": ["n", 8]}},
            "passes": ["simplify"],
            "backends": ["onnxruntime"],
            "benchmark": {"seconds": 1},
        }
    )


def own_seconds(nodes: int) -> float:
    """Build a chain in an empty folder; its report must be written without a recursion error."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        chain(folder / "m.onnx", nodes)
        options = megacompile.Options(
            build_dir=folder / "build", report_dir=folder / "report", cache_dir=folder / "cache"
        )
        report = megacompile.build(spec(nodes), options, base=folder).report
        assert report.candidates[0].status == "built", report.candidates[0].reason
        assert report.build_seconds is not None
        return report.build_seconds.own


def main() -> None:
    lengths = [int(a) for a in sys.argv[1:]] or [1500, 3000, 6000]
    for nodes in lengths:
        own = own_seconds(nodes)
        print(f"{nodes:>6} nodes: own {own:6.2f} s, {1000 * own / nodes:5.2f} s per 1,000 nodes")


if __name__ == "__main__":
    main()
