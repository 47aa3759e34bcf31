"""How large the values inside an ONNX graph get: seen by running the float32 model."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import onnx

from megacompile.errors import DataError
from megacompile.models import Feeds, onnxfile
from megacompile.plan import PassContext

SAMPLES = 16
# Values that are looked at in one run; all of a large network's at once would fill the memory.
AT_ONCE = 64


def measurement_feeds(ctx: PassContext) -> Iterator[Feeds]:
    """The user's data as far as there is any, and a random example."""
    # A spec without data is measured on the example alone.
    with contextlib.suppress(DataError):
        yield from islice(ctx.calibration(), SAMPLES)
    yield ctx.examples("typical")


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
            copy.graph.output.extend(
                onnx.ValueInfoProto(name=n) for n in watched if n not in outputs
            )
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
