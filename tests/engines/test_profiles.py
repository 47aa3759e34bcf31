"""The shapes that TensorRT engines are built for are the spec's."""

from __future__ import annotations

from megacompile.engines.profiles import profile_of
from megacompile.models.signature import Signature
from megacompile.spec import Dim, TensorInput


def test_smallest_typical_and_largest() -> None:
    inputs = {"x": TensorInput(shape=["n", 3, "t"]), "y": TensorInput(shape=[2, 2])}
    dims = {"n": Dim(min=1, typical=2, max=8), "t": Dim(min=5, typical=5, max=5)}
    assert profile_of(Signature(inputs, dims)) == {
        "x": ((1, 3, 5), (2, 3, 5), (8, 3, 5)),
        "y": ((2, 2), (2, 2), (2, 2)),
    }
