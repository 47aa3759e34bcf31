"""Which blocks of a step can be checkpointed."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from megacompile.plan import Sites
from megacompile.training import Training, TrainingContext
from megacompile.training.batches import split
from megacompile_passes.modules.blocks import nested, repeated_blocks
from megacompile_passes.modules.wiring import record_wiring
from megacompile_passes.training.checkpoint.recipes import plain


def kinds_of_blocks(model: Training, training: TrainingContext) -> list[tuple[str, ...]]:
    """Repeated blocks by their structure, with the first piece of real data."""
    step = training.step(model, plain(model.recipe))
    piece = split(next(training.batches()), step.train.accumulate)[0]
    args, kwargs = step.arguments(piece)
    module = step.module.eval().cpu()
    return repeated_blocks(module, record_wiring(module, lambda: module(*args, **kwargs)))


def candidates(module: nn.Module, kinds: Sequence[Sequence[str]]) -> list[str]:
    """Repeated blocks and the modules of several parts inside them; else all such modules."""
    composed = [n for n, m in module.named_modules() if n and any(m.children()) and _computes(m)]
    blocks = [name for names in kinds for name in names]
    if not blocks:
        return composed
    inside = [n for n in composed if any(n.startswith(f"{b}.") for b in blocks)]
    return [n for n, _ in module.named_modules() if n in blocks or n in inside]


def _computes(module: nn.Module) -> bool:
    """Whether a module has a forward of its own: a ModuleList only holds others."""
    return type(module).forward is not nn.ModuleList.forward


def free(model: Training, names: Sequence[str], sites: Sites) -> list[str]:
    """Those that can be checkpointed: not by a pass before, and one of two names of a module."""
    wrapped = [one.module for one in model.recipe.checkpoints]
    seen: set[int] = set()
    found = []
    for name in names:
        one = model.module.get_submodule(name)
        before = next((other for other in wrapped if nested(other, name)), None)
        if before is not None:
            sites.skip(name, f"'{before}' is checkpointed already")
        elif id(one) in seen:
            sites.skip(name, "another name of a module that is checkpointed")
        else:
            seen.add(id(one))
            found.append(name)
    return found
