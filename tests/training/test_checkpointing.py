"""Activations computed again: the same gradients, whatever a module takes and gives."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from megacompile.training.checkpointing import apply_checkpoints, remove_checkpoints
from megacompile.training.recipe import Checkpoint, Recipe
from tests.training.toy import assert_close, batches_of, gradients_of, make_form


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
        gradients_of(form.step(recipe), batch),
        gradients_of(form.step(wrapped), batch),
        rtol=0,
        atol=0,
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
    plain = gradients_of(form.step(), batch)
    step = form.step(Recipe(checkpoints=(Checkpoint(module="inner"),)))
    hooked = []
    step.module.inner.register_forward_hook(lambda *_: hooked.append(1))
    assert_close(plain, gradients_of(step, batch), rtol=0, atol=0)
    assert step.module.inner.calls == 2, "once forward, once again in the backward pass"
    assert hooked == [1]


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
