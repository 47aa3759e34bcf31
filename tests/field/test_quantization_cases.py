"""Field cases of quantization: ranges, outliers, channels, branches, selectors, order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.field import world
from tests.field.onnx_world import (
    BOOL,
    DATA,
    DYNAMIC,
    FLOAT,
    ROWS,
    STATIC,
    calibration,
    chain,
    save,
    spec,
)
from tests.field.world import dim, normal, tensor


@pytest.mark.parametrize("sentinel", [-3.4e38, -1e4, -30.0])
def test_c24_a_mask_does_not_wreck_the_range(tmp_path: Path, sentinel: float) -> None:
    mask = np.triu(np.full((8, 8), sentinel, np.float32), 1)
    nodes = [
        helper.make_node("Add", ["S", "M"], ["masked"]),
        helper.make_node("Softmax", ["masked"], ["P"], axis=-1),
        helper.make_node("MatMul", ["P", "V"], ["Y"]),
    ]
    save(
        tmp_path,
        nodes,
        {"S": (FLOAT, ["n", 8, 8])},
        {"Y": ["n", 8, 16]},
        {"M": mask, "V": normal(8, 16)},
    )
    data = spec(inputs={"S": tensor("n", 8, 8)}, dims=ROWS, passes=[STATIC], data=DATA)
    files = calibration('{"S": random.standard_normal((1, 8, 8)).astype("float32")}')
    built = world.build(tmp_path, data, files)
    error = built.lowering.error
    assert error is not None
    assert error.cosine_min >= 0.99


class TestC30:
    """One calibration outlier must not turn the whole output into one value."""

    def world(self, folder: Path, rows: str) -> world.Built:
        save(
            folder,
            [helper.make_node("MatMul", ["X", "W"], ["Y"])],
            {"X": (FLOAT, ["n", 32])},
            {"Y": ["n", 32]},
            {"W": normal(32, 32)},
        )
        data = spec(inputs={"X": tensor("n", 32)}, dims=ROWS, passes=[STATIC], data=DATA)
        return world.build(folder, data, calibration(rows))

    def test_the_outlier_is_named(self, tmp_path: Path) -> None:
        rows = '{"X": np.where((np.arange(32) == 3) & (index == 7), 4000, '
        rows += 'random.standard_normal((1, 32))).astype("float32")}'
        built = self.world(tmp_path, rows)
        notes = " ".join(built.step("quantize").notes)
        assert "4000" in notes
        assert "sample 7" in notes
        clean = normal(16, 32, seed=5)
        got, expected = (m.leaves({"X": clean})["Y"] for m in (built.run, built.reference))
        assert len(np.unique(got)) > 100
        assert (got * expected).sum() / np.linalg.norm(got) / np.linalg.norm(expected) > 0.99

    def test_empty_calibration_is_refused(self, tmp_path: Path) -> None:
        chain(tmp_path)
        data = spec(inputs={"X": tensor("n", 64)}, dims=ROWS, passes=[STATIC], data=DATA)
        error = world.refused(tmp_path, data, {"data.py": "def samples():\n    return []\n"})
        assert "is empty" in error.what
        assert error.exit_code == 2


class TestC31:
    """The gate works per output channel."""

    def candidate(self, folder: Path, per_channel: bool) -> world.Built:
        scales = np.logspace(-3, 1, 32).astype(np.float32)
        save(
            folder,
            [helper.make_node("MatMul", ["X", "W"], ["Y"])],
            {"X": (FLOAT, ["n", 64])},
            {"Y": ["n", 32]},
            {"W": normal(64, 32) * scales},
        )
        quantize = {"quantize": {"method": "dynamic", "per_channel": per_channel}}
        data = spec(inputs={"X": tensor("n", 64)}, dims={"n": dim(1, 16, 32)}, passes=[quantize])
        return world.build(folder, data)

    def test_per_tensor_kills_channels(self, tmp_path: Path) -> None:
        with pytest.raises(world.MegacompileError, match="promise") as caught:
            self.candidate(tmp_path, per_channel=False)
        assert "output channels became constant" in str(caught.value.got)

    def test_per_channel_passes(self, tmp_path: Path) -> None:
        error = self.candidate(tmp_path, per_channel=True).lowering.error
        assert error is not None
        assert not error.dead_channels


def test_c33_weights_used_in_branches(tmp_path: Path) -> None:
    def branch(name: str) -> onnx.GraphProto:
        product = helper.make_node("MatMul", ["X", "W"], [name])
        value = helper.make_tensor_value_info(name, FLOAT, ["n", 64])
        return helper.make_graph([product], name, [], [value])

    nodes = [helper.make_node("If", ["c"], ["Y"], then_branch=branch("a"), else_branch=branch("b"))]
    inputs = {"c": (BOOL, []), "X": (FLOAT, ["n", 64])}
    save(tmp_path, nodes, inputs, {"Y": ["n", 64]}, {"W": normal(64, 64)})
    data = spec(
        inputs={"c": tensor(dtype="bool"), "X": tensor("n", 64)}, dims=ROWS, passes=[DYNAMIC]
    )
    built = world.build(tmp_path, data)
    sites = built.step("quantize").sites
    assert sites is not None
    assert (sites.changed, sites.matched) == (2, 2)
    assert built.step("quantize").parameters == 64 * 64
    for condition in (True, False):
        built.check({"c": np.array(condition), "X": normal(3, 64)}, atol=0.5, rtol=0.1)


@pytest.mark.parametrize(("selector", "near"), [("frist", "first"), ("Matmul", "MatMul")])
def test_c36_a_selector_that_matches_nothing(tmp_path: Path, selector: str, near: str) -> None:
    chain(tmp_path)
    quantize = {"quantize": {"method": "dynamic", "keep": [selector]}}
    data = spec(inputs={"X": tensor("n", 64)}, dims=ROWS, passes=[quantize])
    error = world.refused(tmp_path, data)
    assert selector in error.what
    assert near in str(error.remedy)


def test_c36_a_kept_node_stays_in_float(tmp_path: Path) -> None:
    chain(tmp_path)
    quantize = {"quantize": {"method": "dynamic", "keep": ["second"]}}
    data = spec(inputs={"X": tensor("n", 64)}, dims=ROWS, passes=[quantize])
    sites = world.build(tmp_path, data).step("quantize").sites
    assert sites is not None
    assert (sites.changed, sites.matched) == (1, 2)
    assert "second" in sites.skipped[0].site


@pytest.mark.parametrize("after", [{"cast": {"dtype": "float16"}}, DYNAMIC])
def test_c39_order_is_refused_in_the_plan(tmp_path: Path, after: dict[str, Any]) -> None:
    chain(tmp_path)
    data = spec(inputs={"X": tensor("n", 64)}, dims=ROWS, passes=[DYNAMIC, after])
    error = world.refused(tmp_path, data)
    (name,) = after
    assert f"'{name}' can't run after 'quantize'" in error.what
    assert "before" in str(error.remedy)


def test_c39_simplify_after_quantization_keeps_it(tmp_path: Path) -> None:
    chain(tmp_path)
    data = spec(inputs={"X": tensor("n", 64)}, dims=ROWS, passes=[STATIC, "simplify"], data=DATA)
    files = calibration('{"X": random.standard_normal((1, 64)).astype("float32")}')
    built = world.build(tmp_path, data, files)
    before, after = built.step("quantize"), built.step("simplify")
    assert after.size_bytes is not None
    assert before.size_bytes is not None
    assert after.size_bytes <= 1.1 * before.size_bytes + 4096
