"""`init: nearest`: of each group the block whose values keep the model's answers nearest."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from megacompile_passes.structure.share_parameters.block_fit import relative_error
from megacompile_passes.structure.share_parameters.tying import Tie, tied_copy
from megacompile_passes.structure.share_parameters.values import member, ties_of

if TYPE_CHECKING:
    from megacompile.models import Eager, Feeds
    from megacompile_passes.modules.blocks import Group

Chosen = tuple[int, ...]  # the place of a block in its group, for each group


def nearest(
    model: Eager, groups: Sequence[Group], samples: Callable[[], Iterable[Feeds]]
) -> tuple[list[Tie], str]:
    """Ties with the values of one block of each group, and a remark on which.

    All groups are shared from the start, with their first blocks' values; then each in turn takes
    the best of its blocks while the others stay, until a round changes none (coordinate descent).
    Judging each group alone misleads: MiniLM's best block of a pair depends on the other pairs.
    """
    wanted = [model.call(feeds) for feeds in samples()]
    errors: dict[Chosen, float] = {}

    def error(chosen: Chosen) -> float:
        if chosen not in errors:
            shared = model.with_module(tied_copy(model.module, _ties(model, groups, chosen)))
            found = [
                float(relative_error(shared.call(feeds), answer))
                for feeds, answer in zip(samples(), wanted, strict=True)
            ]
            errors[chosen] = sum(found) / len(found)
        return errors[chosen]

    start = chosen = (0,) * len(groups)
    before = None
    while chosen != before:
        before = chosen
        for place, group in enumerate(groups):
            head, tail = chosen[:place], chosen[place + 1 :]
            others = [(*head, index, *tail) for index in range(len(group.blocks))]
            chosen = min(others, key=lambda one: (error(one), one))
    names = [group.blocks[index] for group, index in zip(groups, chosen, strict=True)]
    return _ties(model, groups, chosen), (
        f"values of {', '.join(names)}: relative squared error of the outputs "
        f"{error(chosen):.3g}, of the first blocks {error(start):.3g}"
    )


def _ties(model: Eager, groups: Sequence[Group], chosen: Chosen) -> list[Tie]:
    ties = []
    for group, index in zip(groups, chosen, strict=True):
        ties += ties_of(model.module, group, member(model.module, group, index))
    return ties
