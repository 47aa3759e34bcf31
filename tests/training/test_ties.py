"""One storage under several names: found, made, and trained once."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from megacompile.errors import ModelError
from megacompile.training.recipe import Recipe
from megacompile.training.ties import apply_ties, find_ties, owners
from tests.training.toy import batches_of, gradients_of, make_form


def test_ties_have_one_storage_one_gradient_and_one_place_in_the_optimizer() -> None:
    form = make_form(dropout=False)
    names = ("blocks.0.wide.weight", "blocks.1.wide.weight")
    step = form.step(Recipe(ties=(names,)))
    parameters = dict(step.module.named_parameters(remove_duplicate=False))
    assert parameters[names[0]] is parameters[names[1]]
    assert len(step.optimizer.param_groups[0]["params"]) == len(list(form.module.parameters())) - 1
    batch = next(batches_of(form))
    tied = gradients_of(step, batch)[names[0]]
    reference = make_form(dropout=False)
    with torch.no_grad():
        reference.module.blocks[1].wide.weight.copy_(reference.module.blocks[0].wide.weight)
    apart = gradients_of(reference.step(), batch)
    torch.testing.assert_close(tied, apart[names[0]] + apart[names[1]])


def tied() -> nn.Sequential:
    module = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(2, 3))
    module[2].weight = module[0].weight
    return module


def test_ties_are_found_with_their_owner_first() -> None:
    assert find_ties(tied()) == (("0.weight", "2.weight"),)
    assert find_ties(nn.Linear(2, 2)) == ()


def test_ties_are_made_and_found_again() -> None:
    module = tied()
    apply_ties(module, [("1.weight", "0.weight"), ("3.bias", "0.bias")])
    assert module[0].weight is module[1].weight
    assert module[0].weight is not module[2].weight, "a group names all who are tied"
    assert find_ties(module) == (("0.weight", "1.weight"), ("0.bias", "3.bias"))
    names = owners(module)
    assert (names["1.weight"], names["3.bias"]) == ("0.weight", "0.bias")
    assert names["3.weight"] == "3.weight"


@pytest.mark.parametrize(
    ("group", "words"),
    [
        (("0.weight", "0.weigth"), ["'0.weigth', which is no parameter", "'0.weight'"]),
        (("0.weight", "3.weight"), ["'3.weight' can't be tied", "[3, 3]", "[3, 2]"]),
    ],
)
def test_what_can_not_be_tied_is_named(group: tuple[str, str], words: list[str]) -> None:
    with pytest.raises(ModelError) as caught:
        apply_ties(tied(), [group])
    for word in words:
        assert word in str(caught.value)
