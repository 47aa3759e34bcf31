"""Field cases of ONNX files: the simplifier, precision, initializers, files on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

from megacompile.models import onnxfile
from tests.field import world
from tests.field.onnx_world import FLOAT, INT64, ROWS, chain, save, spec
from tests.field.world import dim, normal, tensor


def test_c02_simplify_does_not_untie(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Gather", ["W", "ids"], ["e"]),
        helper.make_node("Transpose", ["W"], ["WT"], perm=[1, 0]),
        helper.make_node("MatMul", ["e", "WT"], ["Y"]),
    ]
    save(tmp_path, nodes, {"ids": (INT64, [1, "s"])}, {"Y": [1, "s", 512]}, {"W": normal(512, 64)})
    data = spec(
        inputs={"ids": tensor(1, "s", dtype="int64", range=[0, 511])},
        dims={"s": dim(1, 4, 16)},
        passes=["simplify"],
    )
    built = world.build(tmp_path, data)
    step = built.step("simplify")
    assert step.parameters == built.original.parameters == 512 * 64
    assert step.size_bytes is not None
    assert step.size_bytes <= 1.1 * built.original.size_bytes
    built.check({"ids": np.array([[1, 2, 3]])}, {"ids": np.array([[5, 6, 7, 8, 9]])}, atol=1e-4)


def test_c25_emulated_half_precision_is_said_and_overflow_is_found(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Mul", ["X", "X"], ["square"]),
        helper.make_node("ReduceMean", ["square"], ["mean"], axes=[-1], keepdims=1),
        helper.make_node("Sqrt", ["mean"], ["root"]),
        helper.make_node("Div", ["X", "root"], ["normed"]),
        helper.make_node("MatMul", ["normed", "W"], ["Y"]),
    ]
    save(tmp_path, nodes, {"X": (FLOAT, ["n", 64])}, {"Y": ["n", 64]}, {"W": normal(64, 64)})
    data = spec(
        inputs={"X": tensor("n", 64, range=[-900, 900])},
        dims=ROWS,
        passes=[{"cast": {"dtype": "float16"}}],
    )
    built = world.build(tmp_path, data)
    step = built.step("cast")
    assert step.error is not None
    assert "emulated" in str(step.error.note)
    text = " ".join([*step.notes, *(s.site + s.reason for s in step.sites.skipped)])
    assert "square" in text or "Mul" in text
    built.check({"X": 300 * normal(3, 64)}, atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("size", [2048, 30_000])
def test_c42_folding_does_not_blow_up(tmp_path: Path, size: int) -> None:
    shape = np.array([size, size])
    nodes = [
        helper.make_node("ConstantOfShape", ["shape"], ["big"]),
        helper.make_node("ReduceSum", ["big"], ["sum"], keepdims=0),
        helper.make_node("Add", ["X", "sum"], ["Y"]),
    ]
    if size == 30_000:  # never run: the graph is only simplified
        from megacompile_passes.graph.simplify.onnx import SimplifyOnnx

        from tests.passes.context import make_context

        save(tmp_path, nodes, {"X": (FLOAT, ["n"])}, {"Y": ["n"]}, {"shape": shape})
        form = onnx_form(tmp_path)
        made = SimplifyOnnx().run(form, make_context(tmp_path, form.signature)).model
        assert made.size_bytes() < 10_000
        return
    save(tmp_path, nodes, {"X": (FLOAT, ["n"])}, {"Y": ["n"]}, {"shape": shape})
    data = spec(inputs={"X": tensor("n")}, dims=ROWS, passes=["simplify"])
    size_after = world.build(tmp_path, data).step("simplify").size_bytes
    assert size_after is not None
    assert size_after < 10_000


def onnx_form(folder: Path) -> Any:
    from megacompile.models.forms import Onnx
    from megacompile.models.signature import Signature
    from megacompile.spec.inputs import Dim, TensorInput

    signature = Signature({"X": TensorInput(shape=["n"])}, {"n": Dim(min=1, typical=8, max=32)})
    return Onnx(folder / "m.onnx", signature.with_outputs(["Y"], {"tensor": "Y"}, ["float32"]))


def test_c43_an_overridable_initializer_stays_an_input(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Mul", ["X", "K"], ["xk"]),
        helper.make_node("Add", ["K", "K"], ["k2"]),
        helper.make_node("Add", ["xk", "k2"], ["Y"]),
    ]
    save(
        tmp_path,
        nodes,
        {"X": (FLOAT, ["n"])},
        {"Y": ["n"]},
        {"K": np.array([2.0], np.float32)},
        listed=("K",),
    )
    data = spec(inputs={"X": tensor("n"), "K": tensor(1)}, dims=ROWS, passes=["simplify"])
    built = world.build(tmp_path, data)
    ones = np.ones(3, np.float32)
    assert built.run(X=ones, K=np.array([10.0], np.float32)).tolist() == [30.0] * 3


class TestC51:
    """Artifacts on disk: nothing appended, nothing missing, never another model's."""

    def test_saving_again_appends_nothing(self, tmp_path: Path) -> None:
        chain(tmp_path)
        model = onnxfile.read(tmp_path / "m.onnx")
        sizes = []
        for _ in range(3):
            onnxfile.write(model, tmp_path / "out" / "model.onnx")
            sizes.append(sum(f.stat().st_size for f in (tmp_path / "out").iterdir()))
            model = onnxfile.read(tmp_path / "out" / "model.onnx")
        assert len(set(sizes)) == 1

    def test_two_models_of_one_name_share_a_cache(self, tmp_path: Path) -> None:
        data = spec(inputs={"X": tensor("n", 64)}, dims=ROWS, passes=["simplify"])
        answers = []
        for seed in (0, 9):
            save(
                tmp_path,
                [helper.make_node("MatMul", ["X", "W"], ["Y"])],
                {"X": (FLOAT, ["n", 64])},
                {"Y": ["n", 64]},
                {"W": normal(64, 64, seed=seed)},
            )
            built = world.build(tmp_path, data)
            built.check({"X": normal(3, 64)}, atol=1e-4)
            assert not built.step("simplify").cached
            answers.append(built.run(X=normal(3, 64)))
        assert not np.allclose(*answers)
        assert world.build(tmp_path, data).step("simplify").cached

    def test_a_missing_data_file_is_named(self, tmp_path: Path) -> None:
        chain(tmp_path)
        onnxfile.write(onnxfile.read(tmp_path / "m.onnx"), tmp_path / "m.onnx")
        (tmp_path / "m.onnx.data").unlink()
        data = spec(inputs={"X": tensor("n", 64)}, dims=ROWS)
        assert "m.onnx.data" in str(world.refused(tmp_path, data))
