"""`checkpoint`: what is chosen, that it fits as measured, and that nothing but memory changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from megacompile_passes.training.checkpoint.blocks import CheckpointBlocks
from pydantic import ValidationError
from torch import nn

from megacompile.errors import PassError
from megacompile.measure.training.comparison import compare_traces, trace
from megacompile.training.activations import activation_memory
from megacompile.training.checkpointing import apply_checkpoints, remove_checkpoints
from megacompile.training.costs import measure
from megacompile.training.form import Training
from megacompile.training.recipe import Checkpoint, Compile, Compression, Recipe
from megacompile.training.solver import Way, peak_of
from tests.passes.models import Untouched
from tests.training.test_step import batches_of
from tests.training.toy import make_context, make_form

BLOCKS = [f"blocks.{i}" for i in range(6)]


def run(tmp_path: Path, form: Training, **options: Any) -> Any:
    return CheckpointBlocks(**options).run(form, make_context(tmp_path, form))


def chosen(result: Any) -> list[str]:
    return [one.module for one in result.model.recipe.checkpoints]


def share(form: Training, recipe: Recipe) -> float:
    """Measured activation memory relative to the plain step's."""
    batch = next(batches_of(form))
    plain = activation_memory(form.step(Recipe(ties=form.recipe.ties)), batch).peak
    return activation_memory(form.step(recipe), batch).peak / plain


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"every": 1}, BLOCKS),
        ({"every": 2}, BLOCKS[::2]),
        ({"every": 4}, ["blocks.0", "blocks.4"]),
        ({"blocks": "blocks.*"}, BLOCKS),
        ({"blocks": ["blocks.[12]", "blocks.5"]}, ["blocks.1", "blocks.2", "blocks.5"]),
    ],
)
def test_named_and_every(tmp_path: Path, options: Any, expected: list[str]) -> None:
    form = make_form()
    untouched = Untouched(form.module)
    result = run(tmp_path, form, **options)
    assert chosen(result) == expected
    assert result.sites.changed == len(expected)
    assert [c.block for c in result.model.recipe.costs if c.chosen] == expected
    assert all(c.saved_bytes > 0 and c.recompute_ms > 0 for c in result.model.recipe.costs)
    assert form.recipe.checkpoints == ()
    untouched.check()


@pytest.mark.parametrize("policy", ["all", "keep-matmul"])
def test_training_is_the_same(tmp_path: Path, policy: Any) -> None:
    """Dropout is on: a mask drawn anew in the recomputation would change the gradients."""
    form = make_form()
    result = run(tmp_path, form, every=1, policy=policy)
    plain = trace(form.step(), batches_of(form), 5)
    found = compare_traces(plain, trace(result.model.step(), batches_of(form), 5))
    assert found.relative_max < 1e-5
    assert share(form, result.model.recipe) < 0.9


def test_keeping_matrix_products_needs_more_memory_than_keeping_nothing(tmp_path: Path) -> None:
    form = make_form(batch_size=64)
    all_again, some = (
        share(form, run(tmp_path, form, every=1, policy=policy).model.recipe)
        for policy in ("all", "keep-matmul")
    )
    assert all_again < some < 1


@pytest.mark.parametrize("budget", [0.8, 0.6])
def test_a_budget_is_met_as_measured_and_as_predicted(tmp_path: Path, budget: float) -> None:
    form = make_form(batch_size=128)
    result = run(tmp_path, form, memory=budget)
    recipe = result.model.recipe
    measured = share(form, recipe)
    assert measured <= budget
    problem = measure(form.step(), BLOCKS, next(batches_of(form)))
    plain = peak_of(problem, ())
    ways = [Way(c.module, c.policy == "keep-matmul") for c in recipe.checkpoints]
    assert peak_of(problem, ways) / plain == pytest.approx(measured, rel=0.1)
    # One block fewer would not fit: the cheapest set is no larger than it must be.
    fewer = recipe.edited(checkpoints=recipe.checkpoints[1:])
    assert share(form, fewer) > budget
    assert {c.block for c in recipe.costs} >= set(BLOCKS)
    assert [c.block for c in recipe.costs if c.chosen] == chosen(result)
    assert all("cheapest" in str(c.why) for c in recipe.costs if c.chosen)
    assert "predicted" in result.notes[0]


@pytest.mark.parametrize("policy", ["all", "keep-matmul"])
def test_a_policy_limits_what_a_budget_chooses_from(tmp_path: Path, policy: Any) -> None:
    form = make_form(batch_size=128)
    recipe = run(tmp_path, form, memory=0.8, policy=policy).model.recipe
    assert {one.policy for one in recipe.checkpoints} == {policy}
    assert share(form, recipe) <= 0.8


def test_blocks_inside_blocks_are_candidates_and_exclusive(tmp_path: Path) -> None:
    class Part(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.wide, self.narrow = nn.Linear(64, 256), nn.Linear(256, 64)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.narrow(torch.tanh(self.wide(x)).square())

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = Part(), Part()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.b(self.a(x))

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.enter = nn.Linear(8, 64)
            self.layers = nn.ModuleList(Outer() for _ in range(3))
            self.head = nn.Linear(64, 10)

        def forward(self, image: torch.Tensor) -> torch.Tensor:
            x = self.enter(image)
            for layer in self.layers:
                x = layer(x)
            return self.head(x.mean(1))

    torch.manual_seed(0)
    form = make_form(Net(), batch_size=128)
    result = run(tmp_path, form, memory=0.6)
    names = chosen(result)
    assert {c.block for c in result.model.recipe.costs} == {
        "layers.0",
        "layers.0.a",
        "layers.0.b",
        "layers.1",
        "layers.1.a",
        "layers.1.b",
        "layers.2",
        "layers.2.a",
        "layers.2.b",
    }
    assert not any(a != b and a.startswith(f"{b}.") for a in names for b in names)
    assert share(form, result.model.recipe) <= 0.6


class TestRefusals:
    def test_a_budget_that_can_not_be_met_names_the_least(self, tmp_path: Path) -> None:
        form = make_form(batch_size=128)
        with pytest.raises(PassError, match="can't be met") as caught:
            run(tmp_path, form, memory=0.01)
        text = str(caught.value.got)
        least = float(text.split("memory: ")[1].split(" ")[0])
        assert 0.01 < least < 0.6
        assert "worst moment" in str(caught.value.cause)
        assert share(form, run(tmp_path, form, memory=least).model.recipe) <= least

    def test_a_budget_that_is_met_already(self, tmp_path: Path) -> None:
        form = make_form(
            batch_size=128,
            recipe=Recipe(checkpoints=tuple(Checkpoint(module=n) for n in BLOCKS[:4])),
        )
        with pytest.raises(PassError, match="within the memory budget already"):
            run(tmp_path, form, memory=0.95)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({}, "is needed"),
            ({"every": 2, "memory": 0.5}, "every and memory"),
            ({"memory": 1.5}, "less than 1"),
            ({"memory": 0.5, "policy": "none"}, "policy"),
        ],
    )
    def test_options_that_do_not_fit(self, options: dict[str, Any], message: str) -> None:
        with pytest.raises(ValidationError, match=message):
            CheckpointBlocks(**options)

    def test_a_selector_without_a_match(self, tmp_path: Path) -> None:
        with pytest.raises(PassError, match="matches nothing") as caught:
            run(tmp_path, make_form(), blocks="block.*")
        assert "blocks" in str(caught.value.remedy)

    def test_what_is_checkpointed_already_is_left_alone(self, tmp_path: Path) -> None:
        form = make_form(recipe=Recipe(checkpoints=(Checkpoint(module="blocks.1"),)))
        result = run(tmp_path, form, blocks=["blocks.0", "blocks.1"])
        assert chosen(result) == ["blocks.1", "blocks.0"]
        assert result.sites.skipped == [("blocks.1", "'blocks.1' is checkpointed already")]

    def test_one_module_under_two_names_is_wrapped_once(self, tmp_path: Path) -> None:
        form = make_form()
        blocks: Any = form.module.blocks
        blocks[3] = blocks[0]
        result = run(tmp_path, form, blocks=["blocks.0", "blocks.3"])
        assert chosen(result) == ["blocks.0"]
        plain = trace(form.step(), batches_of(form), 2)
        found = compare_traces(plain, trace(result.model.step(), batches_of(form), 2))
        assert found.relative_max < 1e-5

    def test_after_compression_nothing_can_be_measured(self, tmp_path: Path) -> None:
        form = make_form(recipe=Recipe(compression=Compression()))
        with pytest.raises(PassError, match="comes before"):
            run(tmp_path, form, every=1)

    def test_a_compiled_step_has_no_blocks(self, tmp_path: Path) -> None:
        form = make_form(recipe=Recipe(compile=Compile(what="step")))
        with pytest.raises(PassError, match="no blocks to checkpoint"):
            run(tmp_path, form, every=1)


@pytest.mark.slow
def test_a_compiled_step_is_given_the_partitioners_budget(tmp_path: Path) -> None:
    """The compiler keeps less than eager by itself: what it keeps then is the measure here."""
    form = make_form(batch_size=128, recipe=Recipe(compile=Compile(what="step")))
    torch.compiler.reset()
    compiled = share(form, form.recipe)
    result = run(tmp_path, form, memory=round(compiled - 0.02, 3))
    assert result.model.recipe.checkpoints == ()
    assert 0 < result.model.recipe.compile.activation_memory_budget < 1
    torch.compiler.reset()
    assert share(form, result.model.recipe) <= compiled - 0.02
    with pytest.raises(PassError, match="by the partitioner") as caught:
        run(tmp_path, form, memory=0.01)
    assert "the least is 0." in str(caught.value.got)


@pytest.mark.parametrize("policy", ["all", "keep-matmul"])
def test_c12_the_recomputed_mask_is_the_first_one(policy: Any) -> None:
    class Drop(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.dropout(x * 1.0, 0.5, training=True)

    net = nn.Sequential(Drop(), Drop())
    apply_checkpoints(net, [Checkpoint(module=n, policy=policy) for n in ("0", "1")])
    x = torch.rand(128, 64) + 0.5
    x.requires_grad_()
    y = net(x)
    torch.rand(7)  # the random state has moved on when the backward pass begins
    y.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad == 0, y == 0)
    torch.testing.assert_close(x.grad, y.detach() / x.detach())


def test_c13_arguments_outputs_and_inputs_without_a_gradient() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(16, 16)

        def forward(self, x: Any, scale: float = 1.0, mask: Any = None) -> Any:
            y = nn.functional.gelu(self.linear(x)) * scale
            return y, {"aux": y.mean(), "mask": mask}

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(Block() for _ in range(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            total = torch.zeros(())
            for block in self.blocks:
                x, more = block(x, scale=2.0, mask=None)
                assert more["mask"] is None
                total = total + more["aux"]
            return x.sum() + total

    torch.manual_seed(0)
    net, x = Net(), torch.randn(8, 16)
    net(x).backward()
    expected = {n: p.grad.clone() for n, p in net.named_parameters() if p.grad is not None}
    names = list(net.state_dict())
    net.zero_grad()
    apply_checkpoints(net, [Checkpoint(module=f"blocks.{i}") for i in range(4)])
    assert list(net.state_dict()) == names
    net(x).backward()
    for name, parameter in net.named_parameters():
        assert parameter.grad is not None, name
        torch.testing.assert_close(parameter.grad, expected[name], atol=1e-6, rtol=1e-6)
    remove_checkpoints(net)
    assert all("forward" not in vars(one) for one in net.modules())
