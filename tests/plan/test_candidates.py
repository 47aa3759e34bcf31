"""One candidate: its steps and promise, what is known of its source, whether it can be built."""

from __future__ import annotations

import pytest

from megacompile.commands.plan_view import render_plan
from megacompile.plan import registry
from megacompile.plan.backends import Availability
from megacompile.plan.candidates import source_facts
from megacompile.plan.passes import Effect, Fact, Pass

from .toy import INT8, plan_of


def test_an_unavailable_backend_is_told_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    reason = Availability("no such package", "install it")
    cls = registry.backend_class("openvino")
    monkeypatch.setattr(cls, "availability", lambda self, target: reason)
    text = render_plan(plan_of("onnx", backends=["openvino"]))
    assert "unavailable: no such package" in text
    assert "to do: install it" in text


def test_a_library_that_a_pass_lacks_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pass, "missing_libraries", lambda self: ["nncf"])
    (candidate,) = plan_of("onnx", passes=["simplify"], backends=["openvino"]).candidates
    assert candidate.unavailable == "pass 'simplify' needs nncf, not installed"
    assert candidate.remedy == "pip install 'megacompile[all]'"


def test_the_weakest_promise_on_the_way_is_the_candidates() -> None:
    (exact,) = plan_of("onnx", passes=["simplify"], backends=["openvino"]).candidates
    (lossy,) = plan_of("onnx", passes=["simplify", INT8], backends=["openvino"]).candidates
    assert (exact.effect, lossy.effect) == (Effect.EXACT, Effect.LOSSY)


def test_what_is_known_of_a_source() -> None:
    python, onnx = (plan_of(model, backends=["openvino"]).spec for model in ("python", "onnx"))
    assert Fact.TRAINABLE in source_facts(python)
    assert source_facts(onnx) == {Fact.FLOAT32_WEIGHTS, Fact.UNQUANTIZED}
    assert source_facts(onnx, quantized=True) == {Fact.QUANTIZED}
