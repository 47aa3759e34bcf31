"""The values that blocks share: one block's, the mean, or the least-squares best."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from megacompile.errors import PassError
from megacompile_passes.structure.share_parameters.block_fit import Fit
from megacompile_passes.structure.share_parameters.calls import record_calls
from megacompile_passes.structure.share_parameters.least_squares import (
    fit,
    gram_matrices,
    is_fitted,
)
from megacompile_passes.structure.share_parameters.nearest import nearest
from megacompile_passes.structure.share_parameters.tying import Tie
from megacompile_passes.structure.share_parameters.values import Values, mean, member, ties_of

if TYPE_CHECKING:
    import torch

    from megacompile.models import Eager, Feeds
    from megacompile_passes.modules.blocks import Group

Runs = Callable[[], Iterable[Callable[[], Any]]]
Samples = Callable[[], Iterable["Feeds"]]


def shared_values(
    model: Eager, groups: Sequence[Group], init: str, samples: Samples, seed: int
) -> tuple[list[Tie], list[str]]:
    """A tie for every parameter of every group, and remarks on where the values come from.

    `samples` yields calibration data, anew each time; `first` and `mean` don't ask for it.

    Raises:
        PassError: a fit was asked for blocks that the data never reaches.
    """
    module = model.module

    def runs() -> Iterable[Callable[[], Any]]:
        return (lambda feeds=feeds: model.call(feeds) for feeds in samples())  # type: ignore[misc]

    ties: list[Tie] = []
    notes: list[str] = []
    if init == "nearest":
        ties, note = nearest(model, groups, samples)
        return ties, [note]
    for group in groups:
        if init == "least-squares":
            values, note = _least_squares(module, group, runs, seed)
            notes.append(f"{group.blocks[0]}: {note}")
        else:
            values = member(module, group, 0) if init == "first" else mean(module, group)
        ties += ties_of(module, group, values)
    return ties, notes


def _least_squares(
    module: torch.nn.Module, group: Group, runs: Runs, seed: int
) -> tuple[Values, str]:
    calls = record_calls(module, group.blocks, runs())
    reached = {call.block for call in calls}
    if missed := [b for i, b in enumerate(group.blocks) if i not in reached]:
        raise PassError(
            what=f"the calibration data never reaches block '{missed[0]}'",
            expected="a call of every block of a group",
            remedy="init: first, or other data",
        )
    problem = Fit(module, group, calls)
    starts = {"first": member(module, group, 0), "mean": mean(module, group)}
    residuals = {name: problem.residual(values) for name, values in starts.items()}
    # Closed forms of the layers inside a larger block leave a smaller residual on the data still,
    # but fit the data's few directions alone: MiniLM's retrieval is the worse for it.
    found = _closed_form(module, group, runs)
    if found is None:
        start = min(residuals, key=lambda name: residuals[name])
        found = problem.descend(starts[start], seed)
    text = ", ".join(f"{name} {value:.3g}" for name, value in residuals.items())
    return found, f"relative squared error: {text}, fitted {problem.residual(found):.3g}"


def _closed_form(module: torch.nn.Module, group: Group, runs: Runs) -> Values | None:
    """The solution where every block is one linear layer or layer norm; else None."""
    modules = [module.get_submodule(name) for name in group.blocks]
    if not all(is_fitted(one) for one in modules):
        return None
    grams = gram_matrices(module, group.blocks, runs())
    return fit(modules, [grams[name] for name in group.blocks])
