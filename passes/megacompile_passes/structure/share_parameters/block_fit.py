"""Parameters of one block that answers like several: nonlinear least squares on their own calls.

What is minimised is sum_i |f_i(x_i; p) - f_i(x_i; p_i)|^2 / |f_i(x_i; p_i)|^2 over the calls x_i
that block i gets in the original model, p being the one set of parameters: the blockwise
reconstruction of Li et al., "BRECQ" (2021), with sharing in place of rounding. Where the block
is one linear layer, the closed form of `least_squares` is the solution; else descent starts from
the first block or from the mean, whichever is nearer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from megacompile_passes.modules.blocks import Group

EPOCHS = 6
RATE = 1e-3
MOST_CALLS = 128  # per block: enough for a fit of one block, and they are all held in memory

Values = dict[str, "torch.Tensor"]


@dataclass(frozen=True)
class Call:
    """Arguments of one call of a block, and the floats it answered."""

    block: int
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    answers: tuple[torch.Tensor, ...]


def record_calls(
    module: torch.nn.Module, blocks: Sequence[str], runs: Iterable[Callable[[], Any]]
) -> list[Call]:
    """The calls that blocks get in the given runs of `module`, which has hooks meanwhile."""
    import torch
    from torch.utils._pytree import tree_map

    calls: list[Call] = []
    counts = [0] * len(blocks)
    given: list[Any] = []

    def own(value: Any) -> Any:
        # A model may go on in place (`x += block(x)`): what is kept is a copy.
        return value.clone() if isinstance(value, torch.Tensor) else value

    def enter(_: Any, args: Any, kwargs: Any) -> None:
        given.append(tree_map(own, (args, kwargs)))

    def leave_of(index: int) -> Callable[..., None]:
        def leave(_: Any, args: Any, kwargs: Any, output: Any) -> None:
            kept_args, kept_kwargs = given.pop()
            if counts[index] < MOST_CALLS:
                counts[index] += 1
                calls.append(Call(index, kept_args, kept_kwargs, tree_map(own, _floats(output))))

        return leave

    handles = []
    for index, name in enumerate(blocks):
        one = module.get_submodule(name)
        handles.append(one.register_forward_pre_hook(enter, with_kwargs=True))
        handles.append(one.register_forward_hook(leave_of(index), with_kwargs=True))
    try:
        with torch.no_grad():
            for run in runs:
                run()
    finally:
        for handle in handles:
            handle.remove()
    return calls


class Fit:
    """The residual of a set of shared values over recorded calls, and its descent."""

    def __init__(self, module: torch.nn.Module, group: Group, calls: Sequence[Call]) -> None:
        self.blocks = [module.get_submodule(name) for name in group.blocks]
        self.calls = calls
        # Per block: the name that a value has in it, by its name in the first block.
        self.names = [
            {
                first.removeprefix(f"{group.blocks[0]}."): own.removeprefix(f"{block}.")
                for first, own in zip(group.parameters[0], names, strict=True)
            }
            for block, names in zip(group.blocks, group.parameters, strict=True)
        ]

    def residual(self, values: Values) -> float:
        """Mean over all calls of the squared error relative to the squared answer."""
        import torch

        with torch.no_grad():
            return float(torch.stack([self._loss(values, c) for c in self.calls]).mean())

    def descend(self, start: Values, seed: int) -> Values:
        """Values after Adam over all calls in random order; the start if nothing was won."""
        import torch

        trained = {n: v.detach().clone().requires_grad_() for n, v in start.items()}
        generator = torch.Generator().manual_seed(seed)
        optimizer = torch.optim.Adam(trained.values(), lr=RATE)
        total = EPOCHS * len(self.calls)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, total)
        for _ in range(EPOCHS):
            for index in torch.randperm(len(self.calls), generator=generator).tolist():
                optimizer.zero_grad()
                with torch.enable_grad():
                    self._loss(trained, self.calls[index]).backward()
                optimizer.step()
                schedule.step()
        found = {n: v.detach() for n, v in trained.items()}
        return found if self.residual(found) < self.residual(start) else start

    def _loss(self, values: Values, call: Call) -> torch.Tensor:
        from torch.func import functional_call

        names = self.names[call.block]
        given = {own: values[first] for first, own in names.items()}
        output = functional_call(self.blocks[call.block], given, call.args, dict(call.kwargs))
        return relative_error(output, call.answers)


def relative_error(output: Any, wanted: Any) -> torch.Tensor:
    """Squared error of all floats of an output over the squares of the wanted ones; a scalar."""
    import torch

    error, size = torch.zeros(()), torch.zeros(())
    for got, answer in zip(_floats(output), _floats(wanted), strict=True):
        error = error + (got - answer).float().square().sum()
        size = size + answer.float().square().sum()
    return error / size.clamp(min=1e-12)


def _floats(value: Any) -> tuple[torch.Tensor, ...]:
    from torch.utils._pytree import tree_leaves

    return tuple(
        t for t in tree_leaves(value) if hasattr(t, "is_floating_point") and t.is_floating_point()
    )
