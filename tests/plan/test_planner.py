"""Plans: golden for every spec, clashes with their messages, and what holds of any plan."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megacompile.commands.plan_view import plan_as_data, render_plan
from megacompile.errors import MegacompileError, PlanError, Problems
from megacompile.plan import registry
from megacompile.plan.backends import Availability, Machine
from megacompile.plan.passes import Effect, Fact, consumes, produces
from megacompile.plan.planner import SOURCE_FORMS, Plan, make_plan, source_facts
from megacompile.spec import load_spec, load_spec_data
from megacompile.spec.models import Spec

SPECS = sorted((Path(__file__).resolve().parents[2] / "specs").glob("*.yaml"))
MACHINE = Machine("cpu", 2, ("avx2", "avx512_vnni"))


@pytest.fixture(autouse=True)
def all_available(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans are those of a machine that has every backend."""
    for name in registry.backend_table():
        cls = registry.backend_class(name)
        monkeypatch.setattr(cls, "availability", lambda self, target: Availability())


def plan_of(model: str = "python", **sections: Any) -> Plan:
    reference = {"python": "m.py:f", "onnx": "m.onnx", "exported": "m.pt2", "torchscript": "m.pt"}
    data = {
        "name": "toy",
        "model": {model: reference[model]},
        "inputs": {"x": {"shape": [2, 3]}},
        **sections,
    }
    return make_plan(load_spec_data(data, Path()), lambda _: MACHINE)


def steps_of(plan: Plan) -> dict[str, list[str]]:
    return {c.name: [s.pass_.name for s in c.steps] for c in plan.candidates}


def errors_of(**sections: Any) -> str:
    with pytest.raises(MegacompileError) as caught:
        plan_of(**sections)
    return str(caught.value)


@pytest.mark.parametrize("path", SPECS, ids=lambda p: p.stem)
def test_golden(path: Path, golden: Callable[[str, str], None]) -> None:
    def machine(spec: Spec) -> Machine:
        target = spec.target
        return Machine(target.device, 2, MACHINE.isa, tuple(target.arch or ()))

    plan = make_plan(load_spec(path), machine)
    golden(f"{path.stem}.txt", render_plan(plan) + "\n")


def test_conversions_are_inserted_and_marked() -> None:
    plan = plan_of(passes=["simplify"], backends=["onnxruntime"])
    (candidate,) = plan.candidates
    assert [(s.pass_.name, s.inserted) for s in candidate.steps] == [
        ("export", True),
        ("to-onnx", True),
        ("simplify", False),
    ]
    assert candidate.name == "default/onnxruntime"
    assert "+ export -> Exported" in render_plan(plan)
    assert "(stored)" in render_plan(plan, {"default/onnxruntime": [True]})
    data = plan_as_data(plan, {"default/onnxruntime": [True, False, False, False]})
    assert data["candidates"][0]["stored"] == [True, False, False, False]


def test_one_name_serves_every_form() -> None:
    plan = plan_of(passes=["simplify"], backends=["onnxruntime", "aotinductor", "torchscript"])
    forms = {c.backend.name: c.form for c in plan.candidates}
    assert forms == {"onnxruntime": "Onnx", "aotinductor": "Exported", "torchscript": "Scripted"}


def test_a_variant_continues_the_common_passes() -> None:
    plan = plan_of(
        "onnx",
        passes=["simplify"],
        backends=["onnxruntime"],
        variants={
            "a": {},
            "b": {"passes": [{"quantize": {"method": "dynamic"}}], "backends": ["openvino"]},
        },
    )
    assert steps_of(plan) == {"a/onnxruntime": ["simplify"], "b/openvino": ["simplify", "quantize"]}
    assert plan.candidates[1].effect is Effect.LOSSY
    assert plan.baselines == ("onnxruntime",)


def test_an_unavailable_backend_is_told_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    reason = Availability("no such package", "install it")
    cls = registry.backend_class("openvino")
    monkeypatch.setattr(cls, "availability", lambda self, target: reason)
    text = render_plan(plan_of("onnx", backends=["openvino"]))
    assert "unavailable: no such package" in text
    assert "to do: install it" in text


INT8 = {"quantize": {"method": "dynamic"}}
BF16 = {"cast": {"dtype": "bfloat16"}}
RECOVER = {"recover": {"batches": "m.py:f", "steps": 1, "distill": {}}}
TRAIN = {"loss": "m.py:f", "batches": "m.py:f", "batch_size": 2}


@pytest.mark.parametrize(
    ("sections", "expected"),
    [
        (
            {"passes": [INT8, BF16], "backends": ["openvino"]},
            ["pass 'cast' can't run after 'quantize'", "put 'cast' before 'quantize'"],
        ),
        (
            {"passes": [BF16], "backends": ["onnxruntime"]},
            ["no bfloat16 MatMul", "openvino or aotinductor"],
        ),
        (
            {"passes": [{"quantize": {"method": "static"}}], "backends": ["openvino"]},
            ["'quantize' needs calibration data", "data.calibration"],
        ),
        (
            {"passes": [INT8], "backends": ["torchscript"]},
            ["candidate 'default/torchscript'", "quantize"],
        ),
        (
            {"model": "onnx", "backends": ["torchscript"]},
            [
                "backend 'torchscript' can't take the model",
                "expected: Scripted",
                "got: Onnx",
                "use one of: onnxruntime, openvino",
            ],
        ),
        (
            {"passes": ["export", RECOVER], "backends": ["aotinductor"]},
            ["pass 'recover' can't run after 'export'", "put 'recover' before 'export'"],
        ),
        (
            {"passes": [INT8, RECOVER], "backends": ["aotinductor"]},
            ["pass 'recover' can't run after 'quantize'", "put 'recover' before 'quantize'"],
        ),
        (
            {"passes": ["training-step", RECOVER], "workload": "training", "train": TRAIN},
            ["pass 'recover' can't run after 'training-step'"],
        ),
        (
            {
                "passes": ["export", {"share-parameters": {"mode": "identical"}}],
                "backends": ["aotinductor"],
            },
            ["put 'share-parameters' before 'export'"],
        ),
        (
            {"passes": [{"recover": {"steps": 1, "distill": {}}}], "backends": ["aotinductor"]},
            ["cause: 'recover' needs to know its data: write batches: FILE.py:NAME\n"],
        ),
        (
            {
                "passes": [{"recover": {"steps": 1, "task": {}, "batches": "m.py:f"}}],
                "backends": ["aotinductor"],
            },
            ["needs to know the task"],
        ),
        (
            {
                "passes": [{"recover": {**RECOVER["recover"], "monitor": "accuracy"}}],
                "backends": ["aotinductor"],
            },
            ["needs evaluation data", "data.evaluation"],
        ),
        (
            {
                "passes": [{"recover": {**RECOVER["recover"], "quantize": {}}}],
                "backends": ["openvino"],
            },
            ["openvino", "quantiz"],
        ),
        (
            {"passes": ["simplfy"], "backends": ["openvino"]},
            ["unknown pass 'simplfy'", "did you mean 'simplify'"],
        ),
        ({"backends": ["openvin"]}, ["unknown backend 'openvin'", "did you mean 'openvino'"]),
        (
            {"passes": [{"quantize": {"metod": "static"}}], "backends": ["openvino"]},
            ["unknown key 'metod'", "did you mean 'method'"],
        ),
        (
            {"passes": [{"quantize": {"method": "statik"}}], "backends": ["openvino"]},
            ["'static'", "statik"],
        ),
        ({"passes": ["nowhere.py:Mine"], "backends": ["openvino"]}, ["no such file 'nowhere.py'"]),
        ({"backends": ["openvino", "openvino"]}, ["'default/openvino' stands twice"]),
        (
            {"backends": ["openvino"], "benchmark": {"baselines": ["eagr"]}},
            ["unknown baseline 'eagr'", "did you mean 'eager'"],
        ),
        ({"backends": ["openvino"], "benchmark": {"baselines": []}}, ["no baseline"]),
        (
            {"backends": ["openvino"], "benchmark": {"baselines": ["eager", "eager"]}},
            ["baseline 'eager' stands twice"],
        ),
        (
            {"model": "onnx", "backends": ["openvino"], "benchmark": {"baselines": ["eager"]}},
            ["baseline 'eager' needs a PyTorch model"],
        ),
    ],
)
def test_clashes(sections: dict[str, Any], expected: list[str]) -> None:
    text = errors_of(**sections)
    assert re.search(r":\d+:\d+", text)
    for one in expected:
        assert one in text, text


def test_all_clashes_of_all_candidates_at_once() -> None:
    with pytest.raises(Problems) as caught:
        plan_of(
            variants={
                "a": {"passes": [BF16], "backends": ["onnxruntime", "openvino"]},
                "b": {"passes": [INT8, BF16], "backends": ["openvino"]},
                "c": {"passes": [INT8], "backends": ["torchscript"]},
            }
        )
    assert len(caught.value.problems) == 3
    assert {type(p) for p in caught.value.problems} == {PlanError}
    text = str(caught.value)
    assert all(name in text for name in ("a/onnxruntime", "b/openvino", "c/torchscript"))


def test_faults_of_passes_and_of_the_spec_come_together() -> None:
    text = errors_of(passes=["simplfy"], backends=["openvin"], seed=-1)
    assert all(one in text for one in ("simplfy", "openvin", "seed"))


def test_a_quantized_onnx_file_is_not_quantized_again() -> None:
    data = {
        "name": "toy",
        "model": {"onnx": "m.onnx"},
        "inputs": {"x": {"shape": [2]}},
        "passes": [INT8],
        "backends": ["onnxruntime"],
    }
    with pytest.raises(PlanError, match="needs a model that is"):
        make_plan(load_spec_data(data, Path()), lambda _: MACHINE, quantized=True)


ITEMS = st.sampled_from(
    [
        "simplify",
        "fold-batchnorm",
        "export",
        "to-onnx",
        "script",
        INT8,
        BF16,
        {"quantize": {"method": "static"}},
        {"quantize": {"method": "weight-only"}},
        {"cast": {"dtype": "float16"}},
    ]
)


@given(
    model=st.sampled_from(sorted(SOURCE_FORMS)),
    passes=st.lists(ITEMS, max_size=4),
    backends=st.lists(
        st.sampled_from(sorted(registry.backend_table())), min_size=1, max_size=3, unique=True
    ),
)
@settings(max_examples=150, deadline=None)
def test_any_accepted_plan_chains(model: str, passes: list[Any], backends: list[str]) -> None:
    try:
        plan = plan_of(
            model, passes=passes, backends=backends, data={"calibration": {"python": "m.py:c"}}
        )
    except MegacompileError as error:
        for one in getattr(error, "problems", [error]):
            assert isinstance(one, PlanError), one
            assert re.search(r":\d+:\d+", str(one)), one
        return
    wanted = [p if isinstance(p, str) else next(iter(p)) for p in passes]
    for candidate in plan.candidates:
        form, facts = SOURCE_FORMS[model], source_facts(plan.spec)
        for step in candidate.steps:
            assert consumes(type(step.pass_)) == form
            assert produces(type(step.pass_)) == step.form
            assert step.pass_.requires <= facts
            facts = (facts - step.pass_.invalidates) | step.pass_.provided()
            form = step.form
        assert form == candidate.form
        assert form in candidate.backend.accepts
        assert facts == candidate.facts
        assert not {Fact.QUANTIZED, Fact.UNQUANTIZED} <= facts
        assert [s.pass_.name for s in candidate.steps if not s.inserted] == wanted
        for step in candidate.steps:
            assert not step.inserted or type(step.pass_).insertable
