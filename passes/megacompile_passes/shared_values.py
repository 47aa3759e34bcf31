"""The values that blocks share: the first block's, the mean, or the least-squares best."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from megacompile.errors import PassError
from megacompile_passes.block_fit import Fit, Values, record_calls
from megacompile_passes.least_squares import fit, gram_matrices, is_fitted
from megacompile_passes.tying import Tie

if TYPE_CHECKING:
    import torch

    from megacompile_passes.blocks import Group

Runs = Callable[[], Iterable[Callable[[], Any]]]


def shared_values(
    module: torch.nn.Module, groups: Sequence[Group], init: str, runs: Runs, seed: int
) -> tuple[list[Tie], list[str]]:
    """A tie for every parameter of every group, and remarks on where the values come from.

    `runs` yields calls of `module` with calibration data, anew each time; only a fit asks for it.

    Raises:
        PassError: a fit was asked for blocks that the data never reaches.
    """
    ties: list[Tie] = []
    notes: list[str] = []
    for group in groups:
        if init == "least-squares":
            values, note = _least_squares(module, group, runs, seed)
            notes.append(f"{group.blocks[0]}: {note}")
        else:
            values = first(module, group) if init == "first" else mean(module, group)
        held = dict(module.named_parameters(remove_duplicate=False))
        for names in zip(*group.parameters, strict=True):
            if len({id(held[n]) for n in names}) > 1:
                ties.append(Tie(tuple(names), values[_own(group, names[0])]))
    return ties, notes


def first(module: torch.nn.Module, group: Group) -> Values:
    """The first block's parameters, by their names in it."""
    held = dict(module.named_parameters(remove_duplicate=False))
    return {_own(group, name): held[name].detach() for name in group.parameters[0]}


def mean(module: torch.nn.Module, group: Group) -> Values:
    """The mean over the blocks: the least-squares best for the values themselves."""
    import torch

    held = dict(module.named_parameters(remove_duplicate=False))
    return {_own(group, names[0]): torch.stack([held[n].detach().double() for n in names]).mean(0)
            .to(held[names[0]].dtype) for names in zip(*group.parameters, strict=True)}  # fmt: skip


def _own(group: Group, name: str) -> str:
    return name.removeprefix(f"{group.blocks[0]}.")


def _least_squares(
    module: torch.nn.Module, group: Group, runs: Runs, seed: int
) -> tuple[Values, str]:
    calls = record_calls(module, group.blocks, runs())
    reached = {call.block for call in calls}
    if missed := [b for i, b in enumerate(group.blocks) if i not in reached]:
        raise PassError(what=f"the calibration data never reaches block '{missed[0]}'",
                        expected="a call of every block of a group",
                        remedy="init: first, or other data")  # fmt: skip
    problem = Fit(module, group, calls)
    starts = {"first": first(module, group), "mean": mean(module, group)}
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
