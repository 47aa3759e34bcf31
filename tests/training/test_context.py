"""What a training pass may use: the same data each time, and keys that change with the hooks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from megacompile.spec import Train
from megacompile.training.context import TrainingContext, hook_hashes
from megacompile.training.recipe import Recipe
from tests.training.toy import make_form, make_train


def test_batches_are_the_same_every_time_and_of_any_size() -> None:
    context = TrainingContext(make_form().origin)
    one, other = next(context.batches()), next(context.batches())
    assert torch.equal(one["image"], other["image"])
    assert len(one["image"]) == context.train.batch_size == 16
    assert len(next(context.batches(5))["image"]) == 5


def test_a_step_has_the_forms_recipe_or_another() -> None:
    form = make_form(recipe=Recipe(autocast="bfloat16"))
    context = TrainingContext(form.origin)
    assert context.step(form).recipe == form.recipe
    assert context.step(form, Recipe()).recipe == Recipe()
    batch = next(context.batches())
    assert context.loss(torch.zeros(16, 10), batch).item() > 0


def train_in(folder: Path, batches: str = "t.py:batches") -> Train:
    (folder / "t.py").write_text("import help_me\ndef loss(): ...\ndef batches(): ...\n")
    (folder / "help_me.py").write_text("raise AssertionError('nothing is imported')\n")
    return make_train(loss="t.py:loss", batches=batches)


def test_hashes_change_with_the_sources_and_nothing_is_run(tmp_path: Path) -> None:
    train = train_in(tmp_path)
    before = hook_hashes(train, tmp_path)
    assert hook_hashes(train, tmp_path) == before
    assert before[0] == before[1], "both are of one file"
    (tmp_path / "help_me.py").write_text("changed = True\n")
    assert hook_hashes(train, tmp_path) != before
    package = make_train(loss="torch.nn:Module", batches="t.py:b")
    assert hook_hashes(package, tmp_path)[0] == "torch.nn:Module"


def test_stored_data_has_a_hash_of_what_tells_it_apart(tmp_path: Path) -> None:
    train = train_in(tmp_path, batches="npz:a.npz")
    found = [hook_hashes(train, tmp_path)[1]]
    for size in (2, 3):
        np.savez(tmp_path / "a.npz", x=np.zeros(size * 100))
        found.append(hook_hashes(train, tmp_path)[1])
    assert len(set(found)) == 3
