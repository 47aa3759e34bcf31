"""The values that blocks share: one block's, the mean, or the least-squares best."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from megacompile.errors import PassError
from megacompile_passes.structure.share_parameters.block_fit import (
    Fit,
    Values,
    record_calls,
    relative_error,
)
from megacompile_passes.structure.share_parameters.least_squares import (
    fit,
    gram_matrices,
    is_fitted,
)
from megacompile_passes.structure.share_parameters.tying import Tie, tied_copy

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

    if init == "nearest":
        return _nearest(model, groups, samples)
    ties: list[Tie] = []
    notes: list[str] = []
    for group in groups:
        if init == "least-squares":
            values, note = _least_squares(module, group, runs, seed)
            notes.append(f"{group.blocks[0]}: {note}")
        else:
            values = member(module, group, 0) if init == "first" else mean(module, group)
        ties += _ties(module, group, values)
    return ties, notes


def member(module: torch.nn.Module, group: Group, index: int) -> Values:
    """One block's parameters, by their names in the first."""
    held = dict(module.named_parameters(remove_duplicate=False))
    names = zip(group.parameters[0], group.parameters[index], strict=True)
    return {_own(group, name): held[own].detach() for name, own in names}


def mean(module: torch.nn.Module, group: Group) -> Values:
    """The mean over the blocks: the least-squares best for the values themselves."""
    import torch

    held = dict(module.named_parameters(remove_duplicate=False))
    return {
        _own(group, names[0]): torch.stack([held[n].detach().double() for n in names])
        .mean(0)
        .to(held[names[0]].dtype)
        for names in zip(*group.parameters, strict=True)
    }


def _own(group: Group, name: str) -> str:
    return name.removeprefix(f"{group.blocks[0]}.")


def _ties(module: torch.nn.Module, group: Group, values: Values) -> list[Tie]:
    """A tie for each parameter of a group that is not one object already."""
    held = dict(module.named_parameters(remove_duplicate=False))
    return [
        Tie(tuple(names), values[_own(group, names[0])])
        for names in zip(*group.parameters, strict=True)
        if len({id(held[n]) for n in names}) > 1
    ]


def _nearest(
    model: Eager, groups: Sequence[Group], samples: Samples
) -> tuple[list[Tie], list[str]]:
    """The block of each group whose values keep the model's answers nearest to its own.

    All groups are shared from the start, with their first blocks' values; then each in turn takes
    the best of its blocks while the others stay, until a round changes none (coordinate descent).
    Judging each group alone misleads: MiniLM's best block of a pair depends on the other pairs.
    """
    wanted = [model.call(feeds) for feeds in samples()]
    errors: dict[tuple[int, ...], float] = {}

    def ties_of(chosen: Sequence[int]) -> list[Tie]:
        values = [member(model.module, *one) for one in zip(groups, chosen, strict=True)]
        return [
            tie for one in zip(groups, values, strict=True) for tie in _ties(model.module, *one)
        ]

    def error(chosen: tuple[int, ...]) -> float:
        if chosen not in errors:
            shared = model.with_module(tied_copy(model.module, ties_of(chosen)))
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
            others = [
                (*chosen[:place], index, *chosen[place + 1 :]) for index in range(len(group.blocks))
            ]
            chosen = min(others, key=lambda one: (error(one), one))
    names = [group.blocks[index] for group, index in zip(groups, chosen, strict=True)]
    return ties_of(chosen), [
        f"values of {', '.join(names)}: relative squared error of the outputs "
        f"{error(chosen):.3g}, of the first blocks {error(start):.3g}"
    ]


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
        found = problem.descend(starts[min(residuals, key=lambda n: residuals[n])], seed)
    text = ", ".join(f"{name} {value:.3g}" for name, value in residuals.items())
    return found, f"relative squared error: {text}, fitted {problem.residual(found):.3g}"


def _closed_form(module: torch.nn.Module, group: Group, runs: Runs) -> Values | None:
    """The solution where every block is one linear layer or layer norm; else None."""
    modules = [module.get_submodule(name) for name in group.blocks]
    if not all(is_fitted(one) for one in modules):
        return None
    grams = gram_matrices(module, group.blocks, runs())
    return fit(modules, [grams[name] for name in group.blocks])
