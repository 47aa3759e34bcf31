"""Plans: golden for every spec, all clashes at once, and what holds of any plan."""

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
from megacompile.plan.backends import Machine
from megacompile.plan.candidates import SOURCE_FORMS, source_facts
from megacompile.plan.declarations import consumes, produces
from megacompile.plan.passes import Effect, Fact
from megacompile.plan.planner import make_plan
from megacompile.spec import Spec, load_spec

from .toy import BF16, INT8, MACHINE, assert_refused, plan_of, steps_of

SPECS = sorted((Path(__file__).resolve().parents[2] / "specs").glob("*.yaml"))


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


def test_a_candidate_that_stands_twice_is_refused() -> None:
    assert_refused({"backends": ["openvino", "openvino"]}, ["'default/openvino' stands twice"])


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
