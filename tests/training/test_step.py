"""The training step: accumulation, clipping, scaling, resuming, and what each decision does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from megacompile.errors import DataError, ModelError
from megacompile.training.batches import Batches
from megacompile.training.loading import Batch
from megacompile.training.recipe import Checkpoint, Compile, Recipe, Scaler
from megacompile.training.step import TrainingStep
from tests.training.toy import digits, make_form


def batches_of(form: Any) -> Iterator[Batch]:
    origin = form.origin
    return iter(Batches(origin.train, origin.base, origin.seed))


def gradients(step: TrainingStep, batch: Batch) -> dict[str, torch.Tensor]:
    step.gather(batch)
    return step.gradients()


def assert_close(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor], **tolerance: Any) -> None:
    assert set(a) == set(b)
    for name, value in a.items():
        torch.testing.assert_close(
            value, b[name], msg=lambda text, n=name: f"{n}: {text}", **tolerance
        )


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
        gradients(whole.step(), batch), gradients(pieces.step(), batch), rtol=1e-4, atol=1e-7
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
    import copy

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


def test_normalization_softmax_and_loss_are_computed_in_float32() -> None:
    seen: dict[str, torch.dtype] = {}

    class Watched(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.norm = nn.Linear(64, 64), nn.LayerNorm(64)
            self.head = nn.Linear(64, 10)

        def forward(self, image: torch.Tensor) -> torch.Tensor:
            x = self.linear(image.flatten(1))
            seen["linear"] = x.dtype
            seen["norm"] = self.norm(x).dtype
            seen["softmax"] = torch.softmax(x, -1).dtype
            seen["method"] = x.softmax(-1).dtype
            seen["functional"] = nn.functional.softmax(x, -1).dtype
            return self.head(self.norm(x) * x.softmax(-1))

    form = make_form(Watched())
    step = form.step(Recipe(autocast="bfloat16"))
    batch = next(batches_of(form))

    def loss(outputs: torch.Tensor, batch: Batch) -> torch.Tensor:
        seen["outputs"] = outputs.dtype
        return digits().loss(outputs, batch)

    step.loss_function = loss
    step.step(batch)
    assert seen.pop("linear") == torch.bfloat16
    assert set(seen.values()) == {torch.float32}, seen
    assert {p.dtype for p in step.module.parameters()} == {torch.float32}
    assert {s["exp_avg"].dtype for s in step.optimizer.state.values()} == {torch.float32}


@pytest.mark.parametrize("policy", ["all", "keep-matmul"])
@pytest.mark.parametrize("autocast", [None, "bfloat16"])
def test_checkpoints_change_nothing_but_memory(policy: Any, autocast: Any) -> None:
    form = make_form()  # with dropout
    recipe = Recipe(autocast=autocast)
    wrapped = recipe.edited(
        checkpoints=tuple(Checkpoint(module=f"blocks.{n}", policy=policy) for n in range(6))
    )
    batch = next(batches_of(form))
    assert_close(
        gradients(form.step(recipe), batch), gradients(form.step(wrapped), batch), rtol=0, atol=0
    )


class Awkward(nn.Module):
    """Keyword, None and nested arguments and outputs, and hooks."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = AwkwardBlock()
        self.head = nn.Linear(64, 10)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        found = self.inner({"x": image.flatten(1)}, scale=2.0, mask=None)
        return self.head(found["deep"][0] + found["deep"][1][0])


class AwkwardBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 64)
        self.calls = 0

    def forward(self, given: dict[str, torch.Tensor], *, scale: float, mask: Any) -> dict[str, Any]:
        self.calls += 1
        assert mask is None
        x = torch.relu(self.layer(given["x"])) * scale
        return {"deep": (x, [x * 2, None]), "flag": True}


def test_awkward_arguments_pass_through_and_hooks_run_once() -> None:
    form = make_form(Awkward(), accumulate=1)
    batch = next(batches_of(form))
    plain = gradients(form.step(), batch)
    step = form.step(Recipe(checkpoints=(Checkpoint(module="inner"),)))
    hooked = []
    step.module.inner.register_forward_hook(lambda *_: hooked.append(1))
    assert_close(plain, gradients(step, batch), rtol=0, atol=0)
    assert step.module.inner.calls == 2, "once forward, once again in the backward pass"
    assert hooked == [1]


def test_ties_have_one_storage_one_gradient_and_one_place_in_the_optimizer() -> None:
    form = make_form(dropout=False)
    names = ("blocks.0.wide.weight", "blocks.1.wide.weight")
    step = form.step(Recipe(ties=(names,)))
    parameters = dict(step.module.named_parameters(remove_duplicate=False))
    assert parameters[names[0]] is parameters[names[1]]
    assert len(step.optimizer.param_groups[0]["params"]) == len(list(form.module.parameters())) - 1
    batch = next(batches_of(form))
    tied = gradients(step, batch)[names[0]]
    reference = make_form(dropout=False)
    with torch.no_grad():
        reference.module.blocks[1].wide.weight.copy_(reference.module.blocks[0].wide.weight)
    apart = gradients(reference.step(), batch)
    torch.testing.assert_close(tied, apart[names[0]] + apart[names[1]])


@pytest.mark.slow
@pytest.mark.parametrize(
    "choice", [Compile(what="step"), Compile(what="blocks", modules=("blocks.0", "blocks.1"))]
)
def test_a_compiled_step_computes_the_same(choice: Compile) -> None:
    form = make_form(dropout=False)
    batch = next(batches_of(form))
    torch._dynamo.reset()
    recipe = Recipe(compile=choice, checkpoints=(Checkpoint(module="blocks.0"),))
    assert_close(
        gradients(form.step(), batch), gradients(form.step(recipe), batch), rtol=1e-3, atol=1e-6
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
