"""Field cases of ONNX files: the simplifier, quantization, precision, initializers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from megacompile.models import onnxfile
from tests.field import world
from tests.field.world import dim, normal, tensor

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
Node = onnx.NodeProto
ROWS = {"n": dim(1, 8, 32)}


def save(
    folder: Path,
    nodes: list[Node],
    inputs: dict[str, tuple[int, list[Any]]],
    outputs: dict[str, list[Any]],
    weights: dict[str, np.ndarray],
    listed: tuple[str, ...] = (),
) -> None:
    """Write m.onnx; weights in `listed` are graph inputs too, with their value as default."""
    values = [helper.make_tensor_value_info(n, t, s) for n, (t, s) in inputs.items()]
    values += [helper.make_tensor_value_info(n, FLOAT, list(weights[n].shape)) for n in listed]
    graph = helper.make_graph(
        nodes,
        "case",
        values,
        [helper.make_tensor_value_info(n, FLOAT, s) for n, s in outputs.items()],
        [numpy_helper.from_array(a, n) for n, a in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    onnx.save(model, str(folder / "m.onnx"))


def spec(**parts: Any) -> dict[str, Any]:
    return world.spec(model={"onnx": "m.onnx"}, **parts)


def calibration(rows: str) -> dict[str, str]:
    """A data.py whose hook yields `rows`, an expression of numpy arrays by input name."""
    return {
        "data.py": f"""
import numpy as np
def samples():
    random = np.random.default_rng(0)
    for index in range(64):
        yield {rows}
"""
    }


DATA = {"calibration": {"python": "data.py:samples", "samples": 64}}
STATIC = {"quantize": {"method": "static"}}
DYNAMIC = {"quantize": {"method": "dynamic"}}


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


def chain(folder: Path) -> None:
    nodes = [
        helper.make_node("MatMul", ["X", "W1"], ["h"], name="first"),
        helper.make_node("Relu", ["h"], ["r"], name="act"),
        helper.make_node("MatMul", ["r", "W2"], ["Y"], name="second"),
    ]
    save(
        folder,
        nodes,
        {"X": (FLOAT, ["n", 64])},
        {"Y": ["n", 64]},
        {"W1": normal(64, 64), "W2": normal(64, 64, seed=1)},
    )


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
    from megacompile.spec.models import Dim, TensorInput

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
