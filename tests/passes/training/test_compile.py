"""Compiling a step: graphs, breaks and recompilations are counted, a budget is measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from megacompile_passes.training import compile_trial
from megacompile_passes.training.compile import CompileStep
from pydantic import ValidationError
from torch import nn

from megacompile.errors import PassError
from megacompile.training.recipe import Compile, Recipe
from tests.training.toy import make_context, make_form


def run(tmp_path: Path, form: Any, **options: Any) -> Any:
    return CompileStep(**options).run(form, make_context(tmp_path, form))


@pytest.mark.slow
def test_the_step_is_one_graph(tmp_path: Path) -> None:
    form = make_form(dropout=False)
    result = run(tmp_path, form, full_graph=True)
    assert result.model.recipe == Recipe(compile=Compile(what="step"))
    assert result.notes[0] == "1 graphs, 0 graph breaks, 0 recompilations"
    assert form.recipe == Recipe()


@pytest.mark.slow
def test_blocks_are_found_and_chosen(tmp_path: Path) -> None:
    form = make_form(dropout=False)
    every = run(tmp_path, form, what="blocks")
    assert every.model.recipe.compile.modules == tuple(f"blocks.{n}" for n in range(6))
    assert every.sites.changed == 6
    some = run(tmp_path, form, what="blocks", blocks=["blocks.[12]"])
    assert some.model.recipe.compile.modules == ("blocks.1", "blocks.2")


class Breaking(nn.Module):
    """Prints in the middle, which no graph holds."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 32), nn.Linear(32, 10)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.first(image.flatten(1)))
        torch._dynamo.graph_break()
        return self.second(x)


@pytest.mark.slow
def test_graph_breaks_are_counted_and_refused_on_demand(tmp_path: Path) -> None:
    form = make_form(Breaking())
    result = run(tmp_path, form)
    assert "1 graph breaks" in result.notes[0]
    assert "graph break:" in result.notes[1]
    with pytest.raises(PassError, match="graph breaks"):
        run(tmp_path, form, full_graph=True)


class Chain(nn.Module):
    """Layers after each other, of whose activations a compiler may keep much or little."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(256, 256) for _ in range(16))
        self.start, self.head = nn.Linear(64, 256), nn.Linear(256, 10)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = self.start(image.flatten(1))
        for layer in self.layers:
            x = torch.nn.functional.gelu(layer(x))
        return self.head(x)


@pytest.mark.slow
def test_a_memory_budget_is_measured(tmp_path: Path) -> None:
    form = make_form(Chain(), batch_size=1024, accumulate=1)
    result = run(tmp_path, form, memory=0.5)
    assert result.model.recipe.compile.activation_memory_budget == 0.5
    text = next(note for note in result.notes if "with the budget" in note)
    with_budget, without = (
        float(word) for word in text.replace(",", "").split() if word.replace(".", "").isdigit()
    )
    assert 0 < with_budget < without


def test_less_budget_that_needs_more_memory_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The compiler itself does so for some models and versions; here the measured peaks are
    given, so that the words don't hang on them."""
    peaks = {0.2: 90, None: 100, 0.6: 70}
    counted = {"graphs": 1, "graph_breaks": 0, "recompilations": 0, "reasons": []}
    monkeypatch.setattr(
        compile_trial,
        "try_step",
        lambda _, form: (counted, peaks[form.recipe.compile.activation_memory_budget]),
    )
    notes = run(tmp_path, make_form(), memory=0.2).notes
    assert "is not reached" in notes[1]
    assert "0.6 needs" in notes[2]
    peaks[0.2] = 110
    with pytest.raises(PassError, match="needs more memory than none"):
        run(tmp_path, make_form(), memory=0.2)


def test_no_list_of_blocks_is_said(tmp_path: Path) -> None:
    with pytest.raises(PassError, match="no list of repeated blocks"):
        run(tmp_path, make_form(Breaking()), what="blocks")


def test_a_selector_without_a_match_names_what_is_near(tmp_path: Path) -> None:
    with pytest.raises(PassError) as caught:
        run(tmp_path, make_form(), what="blocks", blocks=["block.0"])
    assert "blocks.0" in str(caught.value)


def test_blocks_without_what_are_refused() -> None:
    with pytest.raises(ValidationError, match="what: blocks"):
        CompileStep(blocks=["blocks.*"])


def test_twice_is_refused(tmp_path: Path) -> None:
    form = make_form(recipe=Recipe(compile=Compile(what="step")))
    with pytest.raises(PassError, match="already"):
        run(tmp_path, form)
