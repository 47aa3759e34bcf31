"""Which parameters `recover` trains."""

from __future__ import annotations

import torch
from megacompile_passes.recover.eager import RecoverEager

from megacompile.models.forms import Eager
from megacompile.plan.passes import PassContext
from tests.passes.recover.worlds import recover, spoiled


def test_frozen_parameters_stay_and_flags_come_back(world: tuple[Eager, PassContext]) -> None:
    original, context = world
    model = spoiled(original)
    for parameter in model.module.parameters():
        parameter.requires_grad_(False)  # as models for inference often are
    found = RecoverEager(**recover(distill={}, freeze=["blocks.0.*"])).run(model, context)
    before, after = (dict(m.module.named_parameters()) for m in (model, found.model))
    for name, value in after.items():
        assert torch.equal(value, before[name]) == name.startswith("blocks.0."), name
        assert not value.requires_grad
    frozen = {name for name in before if name.startswith("blocks.0.")}
    assert {site for site, _ in found.sites.skipped} == frozen
