"""Passes that break a training step: named, whenever they are looked at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.builder.training_world import build, spec_of

pytest.importorskip("sklearn")


PASSES = """
from typing import ClassVar
import copy
import torch
from megacompile import Effect, Fact, Pass, PassContext, PassResult, Sites, Training

class Base(Pass[Training, Training]):
    effect: ClassVar[Effect] = Effect.EXACT
    requires: ClassVar[frozenset[Fact]] = frozenset()
    provides: ClassVar[frozenset[Fact]] = frozenset()
    invalidates: ClassVar[frozenset[Fact]] = frozenset()
    def result(self, model):
        sites = Sites("step"); sites.change()
        return PassResult(model, sites)

class Liar(Base):
    name: ClassVar[str] = "liar"
    def run(self, model: Training, ctx: PassContext) -> PassResult[Training]:
        return self.result(model.with_recipe(model.recipe.edited(autocast="bfloat16")))

class Honest(Base):
    name: ClassVar[str] = "honest"
    def run(self, model: Training, ctx: PassContext) -> PassResult[Training]:
        from megacompile.training.recipe import Checkpoint
        wrapped = tuple(Checkpoint(module=f"blocks.{n}") for n in range(6))
        return self.result(model.with_recipe(model.recipe.edited(checkpoints=wrapped)))

class Detacher(Base):
    effect: ClassVar[Effect] = Effect.LOSSY
    name: ClassVar[str] = "detacher"
    def run(self, model: Training, ctx: PassContext) -> PassResult[Training]:
        module = copy.deepcopy(model.module)
        module.head.register_forward_hook(lambda one, args, output: output.detach() + 0 * output)
        return self.result(Training(module, model.signature, model.binding, model.recipe,
                                    model.origin))

class Meddler(Base):
    name: ClassVar[str] = "meddler"
    def run(self, model: Training, ctx: PassContext) -> PassResult[Training]:
        module = copy.deepcopy(model.module)
        with torch.no_grad():
            module.head.weight.mul_(1.5)
        return self.result(Training(module, model.signature, model.binding, model.recipe,
                                    model.origin))
"""


def variants(tmp_path: Path, *names: str, **changes: Any) -> Path:
    (tmp_path / "own.py").write_text(PASSES)
    passes = [f"own.py:{name}" for name in names]
    return spec_of(tmp_path, passes=passes, **changes)


@pytest.mark.slow
def test_the_pass_that_breaks_the_step_is_named(tmp_path: Path) -> None:
    found = build(tmp_path, variants(tmp_path, "Honest", "Liar")).report.candidates[0]
    assert found.status == "failed"
    assert found.failed_step == "liar"
    assert "'liar' broke its promise about the training step" in str(found.reason)


@pytest.mark.slow
def test_without_looking_at_each_step_bisection_finds_it(tmp_path: Path) -> None:
    path = variants(tmp_path, "Honest", "Liar")
    found = build(tmp_path, path, verify_each=False).report.candidates[0]
    assert found.status == "failed"
    assert "'liar' broke its promise" in str(found.reason)
    assert "bisection" in str(found.reason)


@pytest.mark.slow
def test_a_pass_that_changes_weights_is_named(tmp_path: Path) -> None:
    found = build(tmp_path, variants(tmp_path, "Meddler")).report.candidates[0]
    assert found.status == "failed"
    assert "'meddler' broke its promise" in str(found.reason)


@pytest.mark.slow
def test_a_pass_whose_change_would_not_be_stored_is_named(tmp_path: Path) -> None:
    found = build(tmp_path, variants(tmp_path, "Detacher")).report.candidates[0]
    assert found.status == "failed"
    assert "pass 'detacher' changes the module 'head'" in str(found.reason)


@pytest.mark.slow
def test_a_budget_that_is_not_met_says_by_how_much(tmp_path: Path) -> None:
    result = build(tmp_path, variants(tmp_path, "Honest", budget={"peak_memory": 0.1}))
    assert result.report.verdict == "outside_budget"
    assert result.exit_code == 3
    assert result.bundle is None
    assert "peak_memory" in result.report.sentence
    assert "limit 0.1" in result.report.sentence
    [gate] = result.report.candidates[0].gates
    assert "MB" in str(gate.note)
