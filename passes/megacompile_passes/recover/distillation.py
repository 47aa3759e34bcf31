"""What `recover` learns from the original model: its answers and its hidden states."""

from __future__ import annotations

import torch

from megacompile.errors import DataError, PassError, did_you_mean
from megacompile.plan import select
from megacompile_passes.recover.comparison import Comparison
from megacompile_passes.recover.option_groups import Distill
from megacompile_passes.recover.students import Answers, Batch, Student


class Distillation:
    """The loss of a student's answers against the original's."""

    def __init__(self, choice: Distill, teacher: Student) -> None:
        self.choice, self.teacher = choice, teacher
        self._names: list[str] | None = None

    def losses(self, answers: Answers, batch: Batch) -> torch.Tensor:
        """The loss of every sample.

        Raises:
            DataError, PassError: batch, outputs and options don't fit together.
        """
        choice = self.choice
        with torch.no_grad():
            taught = self.teacher.answers(batch)
        comparison = Comparison(next(iter(batch.values())).shape[0], self._mask(batch))
        losses = []
        if choice.weight:
            losses.append(choice.weight * self._of_outputs(answers, taught, comparison))
        if taught.hidden:
            losses.append(choice.hidden_weight * _of_hidden_states(answers, taught, comparison))
        return torch.stack(losses).sum(0)

    def _mask(self, batch: Batch) -> torch.Tensor | None:
        name = self.choice.mask
        if name is None:
            return None
        if name not in batch:
            raise DataError(
                what=f"`distill.mask` names '{name}', which no batch has",
                got=", ".join(batch),
                remedy=did_you_mean(name, batch),
            )
        return (batch[name] != 0).float()

    def _of_outputs(
        self, answers: Answers, taught: Answers, comparison: Comparison
    ) -> torch.Tensor:
        found = []
        for name in self._outputs(taught):
            mine, theirs = answers.outputs[name].float(), taught.outputs[name].float()
            found.append(comparison.loss(self.choice, mine, theirs, f"output '{name}'"))
        return torch.stack(found).mean(0)

    def _outputs(self, taught: Answers) -> list[str]:
        """The outputs to learn: those that are named, of the floating ones."""
        if self._names is None:
            selectors = self.choice.outputs
            floating = [n for n, one in taught.outputs.items() if one.is_floating_point()]
            chosen = select(selectors, floating, "distill.outputs") if selectors else None
            self._names = [n for n in floating if chosen is None or n in chosen]
            if not self._names:
                raise PassError(
                    what="the model has no floating output to learn",
                    expected="one in `distill.outputs`, or `distill.weight: 0` and `hidden`",
                    got=", ".join(taught.outputs),
                )
        return self._names


def _of_hidden_states(answers: Answers, taught: Answers, comparison: Comparison) -> torch.Tensor:
    found = []
    for name, theirs in taught.hidden.items():
        mine = answers.hidden[name]
        if len(mine) != len(theirs) or not mine:
            raise PassError(
                what=f"'{name}' of `distill.hidden` gives no hidden state to compare",
                expected=f"{len(theirs)} tensors, as in the original",
                got=str(len(mine)),
            )
        found += [
            comparison.relative(a.float(), b.float(), f"hidden state '{name}'")
            for a, b in zip(mine, theirs, strict=True)
        ]
    return torch.stack(found).mean(0)
