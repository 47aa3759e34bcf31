"""Parameters of one block that answers like several: nonlinear least squares on their own calls.

What is minimised is sum_i |f_i(x_i; p) - f_i(x_i; p_i)|^2 / |f_i(x_i; p_i)|^2 over the calls x_i
that block i gets in the original model, p being the one set of parameters: the blockwise
reconstruction of Li et al., "BRECQ" (2021), with sharing in place of rounding. Where the block
is one linear layer, the closed form of `least_squares` is the solution; else descent starts from
the first block or from the mean, whichever is nearer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from megacompile_passes.structure.share_parameters.calls import Call, floats_of
from megacompile_passes.structure.share_parameters.values import Values

if TYPE_CHECKING:
    import torch

    from megacompile_passes.modules.blocks import Group

EPOCHS = 6
RATE = 1e-3


class Fit:
    """The residual of a set of shared values over recorded calls, and its descent."""

    def __init__(self, module: torch.nn.Module, group: Group, calls: Sequence[Call]) -> None:
        self.blocks = [module.get_submodule(name) for name in group.blocks]
        self.calls = calls
        # Per block: the name that a value has in it, by its name in the first block.
        own = [_names_inside(*one) for one in zip(group.blocks, group.parameters, strict=True)]
        self.names = [dict(zip(own[0], names, strict=True)) for names in own]

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


def _names_inside(block: str, names: Sequence[str]) -> list[str]:
    return [name.removeprefix(f"{block}.") for name in names]


def relative_error(output: Any, wanted: Any) -> torch.Tensor:
    """Squared error of all floats of an output over the squares of the wanted ones; a scalar."""
    import torch

    error, size = torch.zeros(()), torch.zeros(())
    for got, answer in zip(floats_of(output), floats_of(wanted), strict=True):
        error = error + (got - answer).float().square().sum()
        size = size + answer.float().square().sum()
    return error / size.clamp(min=1e-12)
