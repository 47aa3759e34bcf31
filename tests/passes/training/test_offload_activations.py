"""`offload-activations`: refused on a CPU with the reason; the recipe on CUDA."""

from __future__ import annotations

from pathlib import Path

import pytest
from megacompile_passes.training.offload_activations import OffloadActivations

from megacompile.errors import PassError
from megacompile.training.recipe import Compression, Offload, Recipe
from tests.training.toy import make_context, make_form


def test_a_cpu_has_nowhere_to_move_them(tmp_path: Path) -> None:
    form = make_form()
    with pytest.raises(PassError, match="host's memory already") as caught:
        OffloadActivations().run(form, make_context(tmp_path, form))
    assert "compress-activations" in str(caught.value.remedy)


def test_the_recipe_on_cuda(tmp_path: Path) -> None:
    """No GPU is needed to decide; tests/training/test_offloading.py moves tensors."""
    form = make_form()
    context = make_context(tmp_path, form, device="cuda")
    result = OffloadActivations(blocks="blocks.*", minimum_elements=10).run(form, context)
    modules = tuple(f"blocks.{i}" for i in range(6))
    assert result.model.recipe.offload == Offload(minimum_elements=10, modules=modules)
    assert OffloadActivations().run(form, context).model.recipe.offload == Offload()


@pytest.mark.parametrize("recipe", [Recipe(compression=Compression()), Recipe(offload=Offload())])
def test_once_and_in_one_way(tmp_path: Path, recipe: Recipe) -> None:
    form = make_form(recipe=recipe)
    with pytest.raises(PassError, match="already"):
        OffloadActivations().run(form, make_context(tmp_path, form, device="cuda"))


def test_a_selector_without_a_match(tmp_path: Path) -> None:
    form = make_form()
    with pytest.raises(PassError, match="matches nothing"):
        OffloadActivations(blocks="layers.*").run(form, make_context(tmp_path, form, device="cuda"))
