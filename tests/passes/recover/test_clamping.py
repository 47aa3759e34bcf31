"""Outputs of modules held within limits."""

from __future__ import annotations

from megacompile_passes.convert.export import Export
from megacompile_passes.recover.eager import RecoverEager

from megacompile.models.forms import Eager
from megacompile.plan.passes import PassContext
from tests.passes.models import cosine
from tests.passes.recover.worlds import probe, recover, spoiled


def test_clipped_activations_stay_clipped_in_what_is_exported(
    world: tuple[Eager, PassContext],
) -> None:
    original, context = world
    options = recover(distill={}, clip_activations={"modules": ["blocks.*.1"], "percentile": 80})
    result = RecoverEager(**options).run(spoiled(original), context)
    assert "2 modules' outputs are clamped" in result.notes[0]
    program = Export().run(result.model, context).model.program
    names = [str(node.target) for node in program.graph.nodes]
    assert sum("clamp" in name for name in names) == 2
    feeds = probe(original)
    free = RecoverEager(**recover(distill={})).run(spoiled(original), context).model
    assert cosine(free.run(feeds), result.model.run(feeds)) < 1 - 1e-5
