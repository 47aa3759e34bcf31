"""Mixed precision: what the recipe says, what is refused, and what a step then does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from megacompile_passes.training.mixed_precision import MixedPrecision
from pydantic import ValidationError

from megacompile.errors import PassError
from megacompile.measure.training.comparison import compare_traces, trace
from megacompile.models.comparison import COSINE_OF
from megacompile.plan.passes import Effect
from megacompile.training.recipe import Recipe, Scaler
from tests.training.toy import batches_of, make_context, make_form


def run(tmp_path: Path, options: dict[str, Any], **context: Any) -> Any:
    form = make_form()
    return form, MixedPrecision(**options).run(form, make_context(tmp_path, form, **context))


def test_the_recipe_is_all_that_changes(tmp_path: Path) -> None:
    form, result = run(tmp_path, {})
    assert result.model.recipe == Recipe(autocast="bfloat16")
    assert result.model.module is form.module
    assert form.recipe == Recipe()
    assert result.sites.changed == len(list(form.module.parameters()))


def test_float16_gets_a_scaler_with_the_stated_bounds(tmp_path: Path) -> None:
    _, result = run(tmp_path, {"dtype": "float16"})
    assert result.model.recipe.scaler == Scaler(initial=8192, minimum=4096, maximum=65536)
    _, result = run(tmp_path, {"dtype": "float16", "initial_scale": 5000})
    assert result.model.recipe.scaler.initial == 5000


def test_float16_is_refused_where_it_is_not_computed(tmp_path: Path) -> None:
    with pytest.raises(PassError) as caught:
        run(tmp_path, {"dtype": "float16"}, isa=("avx2", "avx512_bf16"))
    assert "does not compute in float16" in str(caught.value)
    assert "bfloat16" in str(caught.value.remedy)


def test_emulated_bfloat16_is_said(tmp_path: Path) -> None:
    _, result = run(tmp_path, {}, isa=("avx2",))
    assert "converting" in result.notes[0]


def test_twice_is_refused(tmp_path: Path) -> None:
    form = make_form(recipe=Recipe(autocast="bfloat16"))
    with pytest.raises(PassError, match="already"):
        MixedPrecision().run(form, make_context(tmp_path, form))


def test_scales_out_of_order_are_refused() -> None:
    with pytest.raises(ValidationError, match="minimum_scale <= initial_scale"):
        MixedPrecision(dtype="float16", initial_scale=1024)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_gradients_are_within_the_promise(tmp_path: Path, dtype: str) -> None:
    form, result = run(tmp_path, {"dtype": dtype})
    assert MixedPrecision.effect is Effect.NUMERIC
    plain = trace(form.step(), batches_of(form), 2)
    found = compare_traces(plain, trace(result.model.step(), batches_of(form), 2))
    assert COSINE_OF[dtype] <= found.cosine_min < 1
    assert found.relative_max > 0


def test_scales_without_float16_are_refused() -> None:
    with pytest.raises(ValueError, match="`minimum_scale` belongs to dtype: float16"):
        MixedPrecision(dtype="bfloat16", minimum_scale=1.0)
