"""The user's loss: found by its reference, and held to be something to go back from."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from megacompile.errors import ModelError
from megacompile.spec import Train
from megacompile.system import hooks

if TYPE_CHECKING:
    import torch


def load_loss(train: Train, base: Path) -> Any:
    """The user's loss function; what it raises names the user's own line.

    Raises:
        SpecError: it can't be found, or isn't callable.
    """
    found = hooks.load(train.loss, base)
    if not callable(found):
        raise ModelError(
            what=f"loss '{train.loss}' can't be called",
            where="train.loss",
            expected="a function loss(outputs, batch)",
            got=type(found).__name__,
        )
    return found


def as_scalar(loss: Any, reference: str) -> torch.Tensor:
    """A loss as a tensor without axes.

    Raises:
        ModelError: it isn't a tensor of one element with a gradient.
    """
    import torch

    if not isinstance(loss, torch.Tensor) or loss.numel() != 1 or not loss.requires_grad:
        raise ModelError(
            what=f"loss '{reference}' gives no scalar to go back from",
            where="train.loss",
            expected="a tensor with one element that depends on the model",
            got=_describe(loss),
            remedy="return a mean or a sum over the samples",
        )
    return loss.reshape(())


def _describe(value: Any) -> str:
    import torch

    if not isinstance(value, torch.Tensor):
        return type(value).__name__
    text = f"a tensor of shape {list(value.shape)}"
    return text if value.requires_grad else f"{text} without a gradient"
