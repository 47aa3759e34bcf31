"""A bundle's tensors as the server describes them; what does not fit is refused by name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from megacompile.deploy.triton.ports import batch_dim, interface
from megacompile.engines.manifest import MANIFEST
from megacompile.models.comparison import InputSet
from megacompile.models.shapes import output_shapes
from megacompile.models.signature import Signature
from megacompile.spec.inputs import Dim, TensorInput
from tests.deploy.triton.conftest import read_json
from tests.deploy.triton.exporting import FIXED, refused

pytest.importorskip("tritonclient", reason="tritonclient is not installed")


# What Triton's users met when their repositories were loaded (server#1889, #1105, #4811, #5721).
def test_a_fixed_batch_is_refused_by_name(bundle: Path, tmp_path: Path) -> None:
    manifest = read_json(bundle / MANIFEST)
    manifest["signature"]["inputs"] = {"image": {"shape": [1, 3, 32, 32], "dtype": "float32"}}
    said = refused(
        bundle,
        tmp_path / "repository",
        {**FIXED, "max_batch_size": 8},
        signature=manifest["signature"],
    )
    assert "input 'image' has no batch axis" in said
    assert "max_batch_size: 0" in said


def test_an_output_without_batch_is_refused_by_name(bundle: Path, tmp_path: Path) -> None:
    outputs = {"y": ["batch", "rows", 64], "total": [7]}
    said = refused(bundle, tmp_path / "repository", {**FIXED, "max_batch_size": 8}, outputs=outputs)
    assert "output 'total' has no batch axis" in said


def test_a_type_that_triton_lacks_is_refused_by_name(bundle: Path, tmp_path: Path) -> None:
    manifest = read_json(bundle / MANIFEST)
    manifest["signature"]["output_dtypes"] = ["float32", "complex64"]
    said = refused(bundle, tmp_path / "repository", FIXED, signature=manifest["signature"])
    assert "no type for tensor 'total'" in said
    assert "complex64" in said


def test_known_sizes_stay_and_types_are_tritons(tmp_path: Path) -> None:
    inputs = {
        name: TensorInput(shape=["n", "t", 3], dtype=dtype)
        for name, dtype in (("a", "bool"), ("b", "uint8"), ("c", "bfloat16"))
    }
    dims = {"n": Dim(min=1, typical=2, max=4), "t": Dim(min=5, typical=5, max=5)}
    signature = Signature(inputs, dims, ("y", "z"), None, ("float64", "int16"))
    found = interface(signature, {"y": ["n", 16075], "z": ["n", None]}, None)
    assert [port.shape for port in found.inputs] == [(5, 3)] * 3
    assert [port.triton_type for port in found.inputs] == ["TYPE_BOOL", "TYPE_UINT8", "TYPE_BF16"]
    assert [port.shape for port in found.outputs] == [(16075,), (-1,)]
    assert [port.triton_type for port in found.outputs] == ["TYPE_FP64", "TYPE_INT16"]


def test_output_shapes_follow_the_dims() -> None:
    dims = {"n": Dim(min=1, typical=2, max=4), "t": Dim(min=2, typical=4, max=9)}
    signature = Signature({"x": TensorInput(shape=["n", "t"])}, dims, ("y", "z"))
    sets = [
        InputSet(
            str(n), {"x": np.zeros((n, t))}, {"y": np.zeros((n, t, 5)), "z": np.zeros((7, t - 1))}
        )
        for n, t in ((2, 4), (1, 2), (4, 9), (3, 5))
    ]
    assert output_shapes(signature, sets) == {"y": ["n", "t", 5], "z": [7, None]}
    assert batch_dim(signature) == "n"
