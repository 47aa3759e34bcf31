"""The pass contract: what effects allow, what sites count, what selectors choose."""

from __future__ import annotations

from pathlib import Path

import pytest

from megacompile.errors import PassError, SpecError
from megacompile.models import Tolerance
from megacompile.plan.passes import Effect, PassContext, Sites, Traits, select

NAMES = ["encoder.0.query", "encoder.0.key", "encoder.1.query", "head"]


def test_effects_are_ranked_from_the_strictest() -> None:
    assert sorted(Effect, key=lambda e: e.rank) == [Effect.EXACT, Effect.NUMERIC, Effect.LOSSY]


def test_what_an_effect_allows() -> None:
    assert Effect.EXACT.tolerance("float16") == Tolerance.rounding()
    assert Effect.NUMERIC.tolerance("bfloat16") == Tolerance.of("bfloat16")
    assert Effect.NUMERIC.tolerance("bfloat16") != Effect.NUMERIC.tolerance("float32")
    assert Effect.LOSSY.tolerance() == Tolerance()


def test_sites_count_what_matched() -> None:
    sites = Sites("linear")
    sites.change()
    sites.skip("head", "kept")
    sites.change()
    assert (sites.matched, sites.changed, sites.skipped) == (3, 2, [("head", "kept")])


@pytest.mark.parametrize(
    ("selectors", "chosen"),
    [
        (["head"], {"head"}),
        (["encoder.0.*"], {"encoder.0.query", "encoder.0.key"}),
        (["*.query", "head"], {"encoder.0.query", "encoder.1.query", "head"}),
        ([], set()),
    ],
)
def test_selectors(selectors: list[str], chosen: set[str]) -> None:
    assert select(selectors, NAMES, "only") == chosen


def test_a_name_with_brackets_is_itself() -> None:
    assert select(["layer[0]"], ["layer[0]", "layer0"], "only") == {"layer[0]", "layer0"}


def test_a_selector_that_matches_nothing_names_the_nearest() -> None:
    with pytest.raises(PassError, match=r"selector 'haed' of `only` matches nothing") as caught:
        select(["head", "haed"], NAMES, "only")
    assert "did you mean 'head'" in str(caught.value)
    assert "4 names, e.g. encoder.0.query" in str(caught.value)


@pytest.fixture
def context(tmp_path: Path) -> PassContext:
    return PassContext(
        work=tmp_path / "work",
        target_threads=1,
        seed=0,
        traits=Traits("any"),
        calibration=lambda: iter(()),
        examples=lambda sizes: {},
        base=tmp_path,
    )


def test_a_hook_is_looked_up_beside_the_spec(context: PassContext, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def loss():\n    return 3\n")
    assert context.load_hook("mine.py:loss")() == 3
    with pytest.raises(SpecError, match="no such file"):
        context.load_hook("other.py:loss")


def test_a_training_pass_in_inference_is_refused(context: PassContext) -> None:
    with pytest.raises(PassError, match="'compile' needs to know how the model is trained"):
        context.needs_training("compile")
