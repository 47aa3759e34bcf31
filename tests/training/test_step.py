"""The training step: accumulation, clipping, scaling, resuming, and what each decision does."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from megacompile.errors import DataError, ModelError
from megacompile.training.recipe import Checkpoint, Compile, Recipe, Scaler
from tests.training.toy import assert_close, batches_of, digits, gradients_of, make_form


def test_the_plain_step_is_what_anyone_would_write() -> None:
    form = make_form(dropout=False, accumulate=1)
    batch = next(batches_of(form))
    step = form.step()
    result = step.step(batch)

    module = digits().build().train()
    for one in module.modules():
        if isinstance(one, nn.Dropout):
            one.p = 0.0
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3, weight_decay=0.01)
    loss = digits().loss(module(batch["image"]), batch)
    loss.backward()
    norm = nn.utils.clip_grad_norm_(module.parameters(), 1.0)
    optimizer.step()
    assert result.loss == pytest.approx(loss.item(), rel=1e-6)
    assert result.grad_norm == pytest.approx(norm.item(), rel=1e-5)
    assert_close(dict(step.module.named_parameters()), dict(module.named_parameters()))


def test_accumulated_gradients_are_those_of_the_whole_batch() -> None:
    whole, pieces = make_form(dropout=False, accumulate=1), make_form(dropout=False, accumulate=4)
    batch = next(batches_of(whole))
    assert_close(
        gradients_of(whole.step(), batch), gradients_of(pieces.step(), batch), rtol=1e-4, atol=1e-7
    )


def test_the_form_and_its_module_stay_untouched() -> None:
    form = make_form()
    before = {name: value.clone() for name, value in form.module.state_dict().items()}
    recipe = Recipe(checkpoints=(Checkpoint(module="blocks.0"),))
    step = form.step(recipe)
    step.step(next(batches_of(form)))
    assert not form.module.training
    assert "forward" not in form.module.blocks[0].__dict__
    assert all(torch.equal(before[n], v) for n, v in form.module.state_dict().items())
    assert step.module.state_dict().keys() == before.keys()


def test_gradients_are_unscaled_before_clipping() -> None:
    form = make_form(dropout=False)
    batch = next(batches_of(form))
    plain = form.step().step(batch)
    scaled = form.step(Recipe(autocast="float16", scaler=Scaler())).step(batch)
    assert scaled.grad_norm == pytest.approx(plain.grad_norm, rel=0.02)
    assert not scaled.skipped


def test_a_step_that_overflows_is_skipped_and_counted_and_the_scale_has_a_floor() -> None:
    form = make_form()
    step = form.step(Recipe(autocast="float16", scaler=Scaler(initial=8192, minimum=4096)))
    stream = batches_of(form)
    step.step(next(stream))
    before = {name: value.clone() for name, value in step.module.state_dict().items()}
    broken = {**next(stream)}
    broken["image"] = broken["image"] * 1e30
    scales = []
    for _ in range(3):
        assert step.step(broken).skipped
        assert step.scaler is not None
        scales.append(step.scaler.get_scale())
    assert scales == [4096.0, 4096.0, 4096.0]
    assert step.skipped == 3
    assert all(torch.equal(before[n], v) for n, v in step.module.state_dict().items())
    assert not step.step(next(stream)).skipped


def test_the_scale_has_a_ceiling() -> None:
    form = make_form()
    choice = Scaler(initial=32768, maximum=65536, growth_interval=1)
    step = form.step(Recipe(autocast="float16", scaler=choice))
    stream = batches_of(form)
    for _ in range(3):
        step.step(next(stream))
    assert step.scaler is not None
    assert step.scaler.get_scale() == 65536.0


@pytest.mark.parametrize("recipe", [Recipe(), Recipe(autocast="float16", scaler=Scaler())])
def test_a_resumed_run_goes_on_as_if_nothing_had_happened(recipe: Recipe) -> None:
    form = make_form()  # with dropout: the random state must come back, too
    through = form.step(recipe)
    stream = batches_of(form)
    first, second = next(stream), next(stream)
    through.step(first)
    state = through.state_dict()
    copied = {**state, "module": {n: v.clone() for n, v in state["module"].items()}}
    copied["optimizer"] = copy.deepcopy(state["optimizer"])
    expected = through.step(second)
    again = form.step(recipe)
    again.load_state_dict(copied)
    got = again.step(second)
    assert got == expected
    assert_close(
        dict(again.module.named_parameters()),
        dict(through.module.named_parameters()),
        rtol=0,
        atol=0,
    )


@pytest.mark.parametrize(
    ("recipe", "near"),
    [
        (Recipe(checkpoints=(Checkpoint(module="block.0"),)), "blocks.0"),
        (Recipe(compile=Compile(what="blocks", modules=("blocks.9",))), "blocks."),
        (Recipe(ties=(("head.weigth", "head.weight"),)), "head.weight"),
    ],
)
def test_a_recipe_that_does_not_fit_names_what_is_near(recipe: Recipe, near: str) -> None:
    with pytest.raises(ModelError) as caught:
        make_form().step(recipe)
    assert near in str(caught.value)


def test_a_batch_without_an_input_is_named() -> None:
    form = make_form()
    batch = next(batches_of(form))
    with pytest.raises(DataError) as caught:
        form.step().step({"images": batch["image"], "label": batch["label"]})
    assert "no entry 'image'" in str(caught.value)
    assert "did you mean 'images'" in str(caught.value)


def test_a_batch_that_does_not_divide_is_named() -> None:
    form = make_form(accumulate=2)
    batch = {name: value[:15] for name, value in next(batches_of(form)).items()}
    with pytest.raises(DataError, match="does not divide by the accumulation"):
        form.step().step(batch)
