"""How large the values inside an ONNX graph get: seen by running the float32 model."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import onnx

from megacompile.models import Feeds, onnxfile

# Values that are looked at in one run; all of a large network's at once would fill the memory.
AT_ONCE = 64


def largest_magnitudes(
    model: onnx.ModelProto, names: list[str], feeds: Iterable[Feeds], work: Path
) -> dict[str, float]:
    """Largest |value| of the named float32 values; NaN counts as infinite."""
    found: dict[str, float] = {}
    samples = list(feeds)
    path = work / "measured.onnx"
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    try:
        # The weights are written once; every run reads a graph with other outputs beside them.
        onnxfile.write(copy, path)
        skeleton = onnxfile.read(path, weights=False)
        outputs = {value.name for value in skeleton.graph.output}
        for start in range(0, len(names), AT_ONCE):
            watched = names[start : start + AT_ONCE]
            copy.CopyFrom(skeleton)
            added = [onnx.ValueInfoProto(name=name) for name in watched if name not in outputs]
            copy.graph.output.extend(added)
            path.write_bytes(copy.SerializeToString())
            session = onnxfile.open_session(path)
            for sample in samples:
                for name, array in session.run(sample, watched).items():
                    size = float(np.abs(array).max(initial=0))
                    found[name] = max(found.get(name, 0.0), size if size == size else np.inf)
    finally:
        for leftover in work.glob("measured.onnx*"):
            leftover.unlink()
    return found
