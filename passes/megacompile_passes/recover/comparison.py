"""Losses between two tensors of a batch, sample by sample."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from megacompile.errors import PassError
from megacompile_passes.recover.option_groups import Distill

TINY = 1e-12


@dataclass(frozen=True)
class Comparison:
    """Compares tensors of a batch with so many `rows`; `mask` is zero where positions don't count.

    `what` names the tensors in errors.
    """

    rows: int
    mask: torch.Tensor | None

    def loss(
        self, choice: Distill, mine: torch.Tensor, theirs: torch.Tensor, what: str
    ) -> torch.Tensor:
        """The loss of each sample between two answers of one shape.

        Raises:
            PassError: the shapes differ, or the first axis is not that of samples.
        """
        if choice.loss == "mse":
            return self.relative(mine, theirs, what)
        self._check_shapes(mine, theirs, what)
        if choice.loss == "cosine":
            values = 1 - F.cosine_similarity(mine, theirs, dim=-1)
        else:
            values = _divergence(mine, theirs, choice.temperature)
        return self._mean(values)

    def relative(self, mine: torch.Tensor, theirs: torch.Tensor, what: str) -> torch.Tensor:
        """Squared difference over the other's mean square of the batch: free of its scale.

        Raises:
            PassError: the shapes differ, or the first axis is not that of samples.
        """
        self._check_shapes(mine, theirs, what)
        scale = self._mean(theirs.square()).mean().clamp(min=TINY)
        return self._mean((mine - theirs).square()) / scale

    def _check_shapes(self, mine: torch.Tensor, theirs: torch.Tensor, what: str) -> None:
        if mine.shape != theirs.shape:
            raise PassError(
                what=f"{what} has another shape than the original's",
                expected=str(list(theirs.shape)),
                got=str(list(mine.shape)),
                remedy="name those that kept their shape",
            )
        if mine.ndim == 0 or mine.shape[0] != self.rows:
            raise PassError(
                what=f"{what} has no axis of samples first",
                expected=f"{self.rows} along its first axis",
                got=str(list(mine.shape)),
                remedy="name only those that have one",
            )

    def _mean(self, values: torch.Tensor) -> torch.Tensor:
        """The mean of each sample [batch], without masked positions where the mask's axes are the
        first ones of the values."""
        rows, mask = values.reshape(values.shape[0], -1), self.mask
        if mask is None or values.ndim < mask.ndim or values.shape[: mask.ndim] != mask.shape:
            return rows.mean(1)
        weights = mask.reshape(*mask.shape, *(1,) * (values.ndim - mask.ndim)).expand_as(values)
        weights = weights.reshape(values.shape[0], -1)
        return (rows * weights).sum(1) / weights.sum(1).clamp(min=1.0)


def _divergence(mine: torch.Tensor, theirs: torch.Tensor, temperature: float) -> torch.Tensor:
    """Kullback-Leibler of softmax along the last axis, scaled so that the temperature leaves the
    size of gradients as it is."""
    divergence = F.kl_div(
        F.log_softmax(mine / temperature, -1),
        F.log_softmax(theirs / temperature, -1),
        reduction="none",
        log_target=True,
    )
    return temperature * temperature * divergence.sum(-1)
