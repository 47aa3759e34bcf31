"""What backends share: the machine they lower for, precisions, and what is installed."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from megacompile.plan import backends
from megacompile.plan.backends import Machine, Refusal, available_with, precision_of
from megacompile.plan.passes import Fact

GPU = Machine("cuda", 4, (), ("sm_89", "sm_90"))


def here(monkeypatch: pytest.MonkeyPatch, *archs: str) -> None:
    """This machine has GPUs of these compute capabilities."""
    monkeypatch.setattr(backends, "local_archs", lambda: archs)


def test_a_machine_travels_as_json() -> None:
    for machine in (GPU, Machine("cpu", 2, ("avx2", "fma"))):
        assert Machine.from_dict(json.loads(json.dumps(asdict(machine)))) == machine
    assert Machine.from_dict({"device": "cpu", "threads": 1, "isa": []}).arch == ()


def test_a_cpu_engine_runs_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    here(monkeypatch)
    assert Machine("cpu", 2, ()).absent() is None
    assert "no NVIDIA GPU" in str(GPU.absent())


def test_a_gpu_engine_runs_on_one_of_its_architectures(monkeypatch: pytest.MonkeyPatch) -> None:
    here(monkeypatch, "sm_90")
    assert GPU.absent() is None
    here(monkeypatch, "sm_75")
    assert GPU.absent() == "this machine's GPU is sm_75, not sm_89 or sm_90"


@pytest.mark.parametrize(
    ("facts", "precision"),
    [
        ({Fact.QUANTIZED, Fact.BFLOAT16}, "int8"),
        ({Fact.BFLOAT16}, "bfloat16"),
        ({Fact.FLOAT16}, "float16"),
        ({Fact.FLOAT32_WEIGHTS, Fact.TRAINABLE}, "float32"),
    ],
)
def test_the_precision_that_facts_ask_for(facts: set[Fact], precision: str) -> None:
    assert precision_of(frozenset(facts)) == precision


def test_what_is_not_installed_is_named_with_the_extra_that_brings_it() -> None:
    assert available_with("pytest", extra="dev", instead="nothing").yes
    found = available_with("pytest", "no-such-one", extra="openvino", instead="onnxruntime")
    assert not found.yes
    assert found.reason == "the package 'no-such-one' is not installed"
    assert found.remedy == "pip install 'megacompile[openvino]', or use onnxruntime"


def test_a_refusal_says_where_the_operator_is() -> None:
    known = Refusal("Loop", "n7", "decoder.0", "no loops", "unroll it")
    assert known.where == "node 'n7' (Loop) of module 'decoder.0'"
    assert Refusal("Loop", "n7", None, "", "").where == "node 'n7' (Loop)"
