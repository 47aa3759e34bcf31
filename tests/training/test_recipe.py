"""The recipe as data: there and back as JSON, edited, and what contradicts itself is refused."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from megacompile.training.recipe import (
    BlockCost,
    Checkpoint,
    Compile,
    Compression,
    Distribute,
    Offload,
    Recipe,
    Scaler,
)

FULL = Recipe(
    ties=(("a.weight", "b.weight"),),
    checkpoints=(Checkpoint(module="a"), Checkpoint(module="b", policy="keep-matmul")),
    costs=(BlockCost(block="a", saved_bytes=8, recompute_ms=0.5, chosen=True),),
    compression=Compression(bits=4),
    offload=Offload(modules=("a",)),
    autocast="float16",
    scaler=Scaler(),
    compile=Compile(what="blocks", modules=("a",), activation_memory_budget=0.5),
    distribute=Distribute(strategy="fsdp", processes=2, reckoning={"state": 3}),
)


def test_a_recipe_is_json() -> None:
    assert Recipe.model_validate_json(FULL.model_dump_json()) == FULL
    assert Recipe.model_validate({}) == Recipe()


def test_an_edit_changes_what_it_names_and_is_checked() -> None:
    edited = FULL.edited(autocast=None, scaler=None)
    assert (edited.autocast, edited.scaler) == (None, None)
    assert edited.edited(autocast="float16", scaler=Scaler()) == FULL
    with pytest.raises(ValidationError, match="module 'a' is checkpointed twice"):
        FULL.edited(checkpoints=(Checkpoint(module="a"), Checkpoint(module="a")))
    with pytest.raises(ValidationError, match="frozen"):
        FULL.autocast = None  # type: ignore[misc]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"ties": [["a", "b"], ["b", "c"]]}, "parameter 'b' stands in two ties"),
        ({"ties": [["a", "a"]]}, "parameter 'a' stands in two ties"),
        ({"scaler": {"initial": 1024}}, r"needed; got 4096, 1024, 65536"),
        ({"scaler": {"growth_interval": 0}}, "growth_interval"),
        ({"compression": {"bits": 6}}, "bits"),
        ({"compile": {"what": "step", "activation_memory_budget": 1.5}}, "budget"),
        ({"distribute": {"strategy": "ddp", "processes": 0}}, "processes"),
        ({"autocats": "bfloat16"}, "autocats"),
    ],
)
def test_what_makes_no_sense_is_refused(data: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Recipe.model_validate(data)
