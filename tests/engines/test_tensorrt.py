"""Real TensorRT-RTX engines, built on a machine without a GPU; what runs on one skips here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import megacompile
from megacompile.engines.tensorrt import flavours
from megacompile.engines.tensorrt.backend import TensorRT
from megacompile.engines.tensorrt.building import EngineBuilder
from megacompile.engines.tensorrt.parsing import clean, module_paths, remedy_of
from megacompile.errors import BackendError, BundleError, MegacompileError, PlanError
from megacompile.models.forms import Onnx
from megacompile.models.signature import Signature
from megacompile.plan.backends import Machine
from megacompile.plan.passes import Fact
from megacompile.plan.planner import Plan, make_plan
from megacompile.report.model import Report
from megacompile.spec.load import load_spec_data
from megacompile.spec.models import Dim, TensorInput
from megacompile.system.gpus import local_archs
from tests.field import world
from tests.field.world import dim, tensor

pytestmark = pytest.mark.skipif(
    flavours.missing(flavours.RTX) is not None, reason=f"{flavours.missing(flavours.RTX)}"
)
needs_gpu = pytest.mark.skipif(not local_archs(), reason="this machine has no NVIDIA GPU")

TARGET = Machine("cuda", 2, (), ("sm_89", "sm_120"))
NET = """
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(16, 32)
        self.outer = nn.Linear(32, 16)
    def forward(self, x):
        return x + self.outer(torch.relu(self.inner(x)))

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(16, 4)
    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)

def build():
    torch.manual_seed(0)
    return Net()

def samples():
    generator = torch.Generator().manual_seed(1)
    for _ in range(16):
        yield {"x": torch.randn(2, 16, generator=generator).numpy()}

def evaluate(run):
    x = next(samples())["x"]
    return {"sum": float(abs(run(x=x)).sum())}
"""
INVERSE = """
import torch
from torch import nn

class Head(nn.Module):
    def forward(self, x):
        return torch.linalg.det(x).unsqueeze(-1)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = Head()
    def forward(self, x):
        return self.head(x * 2)

def build():
    return Net()
"""


def spec(**parts: Any) -> dict[str, Any]:
    return world.spec(
        **{
            "name": "net",
            "inputs": {"x": tensor("n", 16)},
            "dims": {"n": dim(1, 2, 8)},
            "target": {"device": "cuda", "arch": ["sm_89", "sm_120"]},
            "backends": ["tensorrt"],
            **parts,
        }
    )


def plan_of(**parts: Any) -> Plan:
    data = spec(**parts)
    target = data["target"]
    machine = Machine("cuda", 2, (), tuple(target["arch"]))
    return make_plan(load_spec_data(data, Path()), lambda _: machine)


def clash(**parts: Any) -> str:
    with pytest.raises(PlanError) as caught:
        plan_of(**parts)
    return str(caught.value)


def onnx_file(
    path: Path,
    nodes: list[Any],
    weights: dict[str, Any],
    x: list[Any],
    y: list[Any],
    dtype: int = TensorProto.FLOAT,
) -> Onnx:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x)],
        [helper.make_tensor_value_info("y", dtype, y)],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in weights.items()],
    )
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path
    )
    dims = {"n": Dim(min=1, typical=2, max=8)}
    return Onnx(path, Signature({"x": TensorInput(shape=["n", 8])}, dims, ("y",)))


def matmul(path: Path) -> Onnx:
    weight = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)
    return onnx_file(
        path / "m.onnx",
        [helper.make_node("MatMul", ["x", "w"], ["y"], name="mm")],
        {"w": weight},
        ["n", 8],
        ["n", 8],
    )


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Report]:
    """A whole build for two architectures that are not here."""
    folder = tmp_path_factory.mktemp("cross")
    world.write(folder, {"model.py": NET})
    data = spec(
        data={
            "calibration": {"python": "model.py:samples", "samples": 16},
            "evaluation": {"python": "model.py:evaluate"},
        },
        variants={
            "int8": {"passes": [{"quantize": {"method": "static"}}]},
            "bf16": {"passes": [{"cast": {"dtype": "bfloat16"}}]},
            "fp16": {"passes": [{"cast": {"dtype": "float16"}}]},
            "fp32": {},
        },
        budget={"cosine": 0.9, "speedup": 1.5, "latency_ms": 5},
        benchmark={"baselines": ["eager", "tensorrt"]},
    )
    (folder / "net.yaml").write_text(json.dumps(data))
    options = megacompile.Options(
        build_dir=folder / "build", report_dir=folder / "report", cache_dir=folder / "cache"
    )
    result = megacompile.build(folder / "net.yaml", options)
    assert result.exit_code == 0
    assert result.bundle is not None
    return result.bundle, result.report


def test_one_engine_per_architecture_beside_the_onnx_file(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    said: list[str] = []
    lowered = TensorRT().compile(matmul(tmp_path), TARGET, frozenset(), out, said.append)
    names = {file.name for file in out.iterdir()}
    assert {"sm_89.engine", "sm_120.engine", "model.onnx", "tensorrt.json"} <= names
    assert (out / "sm_89.engine").read_bytes() != (out / "sm_120.engine").read_bytes()
    record = json.loads((out / "tensorrt.json").read_text())
    assert record["archs"] == ["sm_89", "sm_120"]
    assert "tensorrt-rtx" in lowered.notes[0]
    assert any("sm_120" in line for line in said)


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


def test_the_report_of_a_cross_build(built: tuple[Path, Report]) -> None:
    _, report = built
    assert report.verdict == "built_not_executed"
    assert report.winner is None
    assert [c.status for c in report.candidates] == ["built"] * 4
    for candidate in report.candidates:
        assert candidate.executed is False
        assert candidate.points == []
        assert candidate.load_seconds is None
        assert {"sm_89.engine", "sm_120.engine"} <= set(candidate.files)
        assert all(size > 0 for size in candidate.files.values())
        assert candidate.metric["sum"].value > 0
        assert {gate.name for gate in candidate.gates} == {"cosine", "dead_channels"}
        assert candidate.lowering is not None
        assert candidate.lowering.error is not None
        assert any("not executed here" in note for note in candidate.lowering.notes)
    eager, plain = report.baselines
    assert eager.status == "unavailable"
    assert plain.executed is False
    assert report.aa_check is None


def test_the_int8_engines_hold_integers(built: tuple[Path, Report]) -> None:
    folder, _ = built
    model = onnx.load(folder / "candidates" / "int8-tensorrt" / "model.onnx")
    zeros = [n for n in model.graph.node if n.op_type == "QuantizeLinear"]
    assert zeros
    values = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    assert all(not values[n.input[2]].any() for n in zeros if len(n.input) > 2)


def test_an_unfinished_bundle_is_neither_run_nor_finished_here(
    built: tuple[Path, Report], tmp_path: Path
) -> None:
    folder, _ = built
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["executed"] is False
    assert manifest["target"]["arch"] == ["sm_89", "sm_120"]
    with pytest.raises(BundleError, match="megacompile finish"):
        megacompile.load(folder)
    if local_archs():
        pytest.skip("this machine has a GPU: finishing is tested elsewhere")
    from megacompile.deploy.finish import finish_bundle

    with pytest.raises(BundleError, match="can't be finished here"):
        finish_bundle(folder, tmp_path, lambda message: None)
    assert json.loads((folder / "manifest.json").read_text()) == manifest


def test_the_engine_says_where_it_runs(built: tuple[Path, Report]) -> None:
    if local_archs():
        pytest.skip("this machine has a GPU")
    folder, _ = built
    out = folder / "candidates" / "fp32-tensorrt"
    signature = Signature.from_dict(json.loads((folder / "manifest.json").read_text())["signature"])
    with pytest.raises(BackendError, match="no NVIDIA GPU"):
        TensorRT().load(out, TARGET, signature)
    with pytest.raises(BackendError, match="no NVIDIA GPU"):
        TensorRT(runtime="onnxruntime").load(out, TARGET, signature)


def test_a_broken_last_form_is_the_candidates_failure(tmp_path: Path) -> None:
    """What can't run here is not taken on trust: the form before it is held to the promise."""
    world.write(
        tmp_path,
        {
            "model.py": NET,
            "wrong.py": """
        from typing import ClassVar
        import onnx
        from onnx import numpy_helper
        from megacompile import Effect, Fact, Onnx, Pass, PassContext, PassResult, Sites

        class Halve(Pass[Onnx, Onnx]):
            name: ClassVar[str] = "halve"
            effect: ClassVar[Effect] = Effect.EXACT
            requires: ClassVar[frozenset[Fact]] = frozenset()
            provides: ClassVar[frozenset[Fact]] = frozenset()
            invalidates: ClassVar[frozenset[Fact]] = frozenset()

            def run(self, model: Onnx, ctx: PassContext) -> PassResult[Onnx]:
                graph = onnx.load(model.path)
                for tensor in graph.graph.initializer:
                    if tensor.data_type == onnx.TensorProto.FLOAT:
                        half = numpy_helper.to_array(tensor) / 2
                        tensor.CopyFrom(numpy_helper.from_array(half, tensor.name))
                path = ctx.work / "model.onnx"
                onnx.save(graph, path)
                sites = Sites("tensor")
                sites.change()
                return PassResult(Onnx(path, model.signature), sites)
    """,
        },
    )
    data = spec(passes=["wrong.py:Halve"], benchmark={"baselines": ["tensorrt"]})
    (tmp_path / "net.yaml").write_text(json.dumps(data))
    options = megacompile.Options(
        build_dir=tmp_path / "build",
        report_dir=tmp_path / "report",
        cache_dir=tmp_path / "cache",
        verify_each=False,
    )
    result = megacompile.build(tmp_path / "net.yaml", options)
    assert result.report.verdict == "failed"
    assert result.exit_code == 4
    assert "promise" in str(result.report.candidates[0].reason)


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ({"target": {"device": "cuda", "arch": ["sm_90"]}}, "no kernels for sm_90"),
        ({"target": {"device": "cuda", "arch": ["sm_75"]}}, "cast: {dtype: float16}"),
        (
            {
                "target": {"device": "cuda", "arch": ["sm_75"]},
                "passes": [{"cast": {"dtype": "bfloat16"}}],
            },
            "no bfloat16 matrix product",
        ),
        (
            {"passes": [{"quantize": {"method": "static", "symmetric": False}}]},
            "tensorrt refuses zero points",
        ),
        ({"passes": [{"quantize": {"method": "dynamic"}}]}, "method: static"),
        ({"backends": [{"tensorrt": {"timing_cache": True}}]}, "leave timing_cache out"),
        (
            {"backends": [{"tensorrt": {"flavour": "tensorrt", "runtime": "onnxruntime"}}]},
            "use flavour tensorrt-rtx",
        ),
    ],
)
def test_refused_in_the_plan(parts: dict[str, Any], says: str) -> None:
    assert says in clash(data={"calibration": {"python": "m.py:s"}}, **parts)


def test_a_cpu_target_is_refused() -> None:
    data = world.spec(inputs={"x": tensor(2)}, backends=["tensorrt"])
    with pytest.raises(PlanError, match="device: cuda"):
        make_plan(load_spec_data(data, Path()), lambda _: Machine("cpu", 2, ()))


def test_the_plain_engine_is_a_baseline_where_the_spec_names_none() -> None:
    plan = plan_of(benchmark={})
    assert plan.baselines == ("eager", "torch.compile", "tensorrt")
    assert [one.backend.name for one in plan.lowered_baselines] == ["tensorrt"]
    turing = plan_of(
        benchmark={},
        target={"device": "cuda", "arch": ["sm_75"]},
        passes=[{"cast": {"dtype": "float16"}}],
    )
    assert turing.baselines == ("eager", "torch.compile")  # float32 is refused there
    assert plan_of(benchmark={"baselines": ["eager"]}).lowered_baselines == ()


def test_float16_is_planned_for_turing() -> None:
    plan = plan_of(
        target={"device": "cuda", "arch": ["sm_75"]}, passes=[{"cast": {"dtype": "float16"}}]
    )
    assert Fact.FLOAT16 in plan.candidates[0].facts


def test_the_other_flavour_needs_its_gpu() -> None:
    (candidate,) = plan_of(backends=[{"tensorrt": {"flavour": "tensorrt"}}]).candidates
    if local_archs():
        pytest.skip("this machine has a GPU")
    assert candidate.unavailable is not None
    assert candidate.remedy is not None
    assert "pip install" in candidate.remedy


def test_missing_libraries_give_the_install_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flavours, "installed_version", lambda flavour: None)
    found = TensorRT(flavour="tensorrt-rtx").availability(TARGET)
    assert "not installed" in str(found.reason)
    assert found.remedy == "pip install 'megacompile[tensorrt-rtx]'"


def test_bindings_and_libraries_must_match(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flavours, "installed_version", lambda flavour: "1.6.0.1")
    assert "must match" in str(flavours.missing(flavours.RTX))


def test_a_refused_operator_is_named_with_its_module(tmp_path: Path) -> None:
    data = spec(inputs={"x": tensor("n", 3, 3)})
    error = _refusal(tmp_path, data, INVERSE)
    assert "'Det'" in error.what
    assert "module 'head'" in str(error.where)
    assert error.remedy


def _refusal(folder: Path, data: dict[str, Any], model: str) -> MegacompileError:
    world.write(folder, {"model.py": model})
    (folder / "net.yaml").write_text(json.dumps(data))
    options = megacompile.Options(
        build_dir=folder / "build", report_dir=folder / "report", cache_dir=folder / "cache"
    )
    from megacompile.job import candidates as steps

    caught: list[MegacompileError] = []
    original = steps._in_process

    def keep(job: Any, outcome: Any, *rest: Any) -> None:
        original(job, outcome, *rest)
        if outcome.error is not None:
            caught.append(outcome.error)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(steps, "_in_process", keep)
        megacompile.build(folder / "net.yaml", options)
    return caught[0]


def test_check_operators_lists_all_of_them(tmp_path: Path) -> None:
    form = onnx_file(
        tmp_path / "bad.onnx",
        [
            helper.make_node("Unique", ["x"], ["u"], name="first"),
            helper.make_node("Relu", ["u"], ["r"], name="fine"),
            helper.make_node("Unique", ["r"], ["y"], name="second"),
        ],
        {},
        ["n", 8],
        ["m"],
    )
    found = TensorRT().check_operators(form)
    assert [(one.operator, one.node) for one in found] == [
        ("Unique", "first"),
        ("Unique", "second"),
    ]
    assert TensorRT().check_operators(matmul(tmp_path)) == []


def test_plan_check_operators(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from megacompile.commands.cli import main

    monkeypatch.setenv("MEGACOMPILE_CACHE", str(tmp_path / "cache"))
    world.write(tmp_path, {"model.py": INVERSE})
    (tmp_path / "net.yaml").write_text(json.dumps(spec(inputs={"x": tensor("n", 3, 3)})))
    with pytest.raises(SystemExit) as caught:
        main(["plan", "--check-operators", str(tmp_path / "net.yaml")])
    assert caught.value.code == 4
    shown = capsys.readouterr().out
    assert "does not take 1 nodes" in shown
    assert "(Det) of module 'head'" in shown


def test_zero_points_in_a_users_own_file(tmp_path: Path) -> None:
    scale, zero = np.float32(0.1), np.uint8(7)
    form = onnx_file(
        tmp_path / "q.onnx",
        [
            helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], name="q1"),
            helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"], name="d1"),
        ],
        {"s": scale, "z": zero},
        ["n", 8],
        ["n", 8],
    )
    out = tmp_path / "out"
    out.mkdir()
    with pytest.raises(BackendError) as caught:
        TensorRT().compile(form, TARGET, frozenset(), out)
    assert "q1" in str(caught.value.where)
    assert "symmetric" in str(caught.value.remedy)


def test_messages_lose_the_librarys_own_places() -> None:
    text = (
        "Assertion failed: x must be y\n[checkMacros.cpp::catchCudaError::250] Error Code 1: "
        "Cuda Runtime (In catchCudaError at /_src/common/x.cpp:250)"
    )
    assert clean(text) == "x must be y"
    assert "float16" in remedy_of("FP32 GEMM is not supported")


def test_module_paths_of_someone_elses_file_are_empty(tmp_path: Path) -> None:
    assert module_paths(matmul(tmp_path).path) == {}


@needs_gpu
def test_an_engine_answers_like_its_model(tmp_path: Path) -> None:
    form = matmul(tmp_path)
    machine = Machine("cuda", 2, (), local_archs())
    if not set(local_archs()) <= set(flavours.RTX.archs or ()):
        pytest.skip(f"TensorRT-RTX has no kernels for {', '.join(local_archs())}")
    out = tmp_path / "out"
    out.mkdir()
    TensorRT().compile(form, machine, frozenset(), out)
    feeds = {"x": np.random.default_rng(1).standard_normal((5, 8)).astype(np.float32)}
    for runtime in ("engine", "onnxruntime"):
        runner = TensorRT(runtime=runtime).load(out, machine, form.signature)
        np.testing.assert_allclose(runner.run(feeds)["y"], form.run(feeds)["y"], rtol=1e-2)
        runner.prepare(feeds)()
        runner.close()
