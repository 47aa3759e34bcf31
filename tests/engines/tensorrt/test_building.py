"""Options and sizes reach the builder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

from megacompile.engines.tensorrt import flavours
from megacompile.engines.tensorrt.backend import TensorRT
from megacompile.engines.tensorrt.building import EngineBuilder
from megacompile.errors import BackendError
from megacompile.models.signature import Signature
from megacompile.spec.inputs import Dim
from tests.engines.tensorrt.networks import (
    TARGET,
    matmul,
    needs_rtx,
    onnx_file,
)

pytestmark = needs_rtx


def test_options_reach_the_builder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    original = EngineBuilder._profile
    monkeypatch.setattr(
        EngineBuilder,
        "_profile",
        lambda self, config: (seen.append(config), original(self, config)),
    )
    out = tmp_path / "out"
    out.mkdir()
    TensorRT(optimization_level=1, workspace_mb=64).compile(
        matmul(tmp_path), TARGET, frozenset(), out
    )
    api = flavours.load("tensorrt-rtx")
    assert [config.builder_optimization_level for config in seen] == [1, 1]
    assert seen[0].get_memory_pool_limit(api.MemoryPoolType.WORKSPACE) == 64_000_000


def test_a_model_without_sizes_in_range_is_refused(tmp_path: Path) -> None:
    """The profile is the spec's: a reshape that only fits other sizes fails in the builder."""
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["y"], name="reshape")]
    form = onnx_file(
        tmp_path / "r.onnx", nodes, {"shape": np.array([3, 8], np.int64)}, ["n", 8], [3, 8]
    )
    signature = form.signature
    for dims, fits in ((Dim(min=3, typical=3, max=3), True), (Dim(min=4, typical=5, max=8), False)):
        out = tmp_path / f"out-{fits}"
        out.mkdir()
        form.signature = Signature(signature.inputs, {"n": dims}, ("y",))
        if fits:
            TensorRT().compile(form, TARGET, frozenset(), out)
            continue
        with pytest.raises(BackendError, match="sm_89"):
            TensorRT().compile(form, TARGET, frozenset(), out)
