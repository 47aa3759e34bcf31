"""What `recover` learns from the task itself: class numbers, or the user's own loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from megacompile.errors import DataError, ModelError, PassError, did_you_mean
from megacompile.models import Signature, put_together
from megacompile_passes.recover.option_groups import Task
from megacompile_passes.recover.students import Answers, Batch


def class_losses(choice: Task, answers: Answers, batch: Batch) -> torch.Tensor:
    """Cross-entropy of every sample to the class numbers that `labels` names.

    Raises:
        DataError, PassError: there are none, or they don't fit the logits.
    """
    assert choice.labels is not None
    if choice.labels not in batch:
        raise DataError(
            what=f"`task.labels` names '{choice.labels}', which no batch has",
            got=", ".join(batch),
            remedy=did_you_mean(choice.labels, batch),
        )
    name = _logits_name(choice, answers)
    logits, labels = answers.outputs[name].float(), batch[choice.labels].long()
    if logits.ndim != labels.ndim + 1 or logits.shape[:-1] != labels.shape:
        raise DataError(
            what=f"labels '{choice.labels}' don't fit the logits '{name}'",
            expected=f"class numbers of shape {list(logits.shape[:-1])}",
            got=f"shape {list(labels.shape)}",
        )
    if bool((labels >= logits.shape[-1]).any()) or bool((labels < 0).any()):
        raise DataError(
            what=f"labels '{choice.labels}' hold numbers that are no class",
            expected=f"0 to {logits.shape[-1] - 1}",
            got=f"{int(labels.min())} to {int(labels.max())}",
        )
    found = F.cross_entropy(
        logits.flatten(0, -2),
        labels.flatten(),
        reduction="none",
        label_smoothing=choice.label_smoothing,
    )
    return found.reshape(labels.shape[0], -1).mean(1)


def _logits_name(choice: Task, answers: Answers) -> str:
    name = choice.output or next(iter(answers.outputs))
    if name not in answers.outputs:
        raise PassError(
            what=f"`task.output` names '{name}', which is no output",
            expected=", ".join(answers.outputs),
            remedy=did_you_mean(name, answers.outputs),
        )
    if choice.output is None and len(answers.outputs) > 1:
        raise PassError(
            what="`task.labels` needs to know which output holds the logits",
            expected="task.output: one of " + ", ".join(answers.outputs),
        )
    return name


def own_loss(
    loss: Callable[[Any, Batch], Any], signature: Signature, answers: Answers, batch: Batch
) -> torch.Tensor:
    """The user's loss of a batch, which sees the outputs in the model's own structure.

    Raises:
        ModelError: it is no scalar.
    """
    assert signature.structure is not None
    outputs = put_together(signature.structure, answers.outputs.__getitem__)
    found = loss(outputs, batch)
    if not isinstance(found, torch.Tensor) or found.numel() != 1:
        is_tensor = isinstance(found, torch.Tensor)
        raise ModelError(
            what="the task's loss is no scalar tensor",
            expected="a tensor with one element",
            got=f"shape {list(found.shape)}" if is_tensor else type(found).__name__,
            remedy="return a mean or a sum over the samples",
        )
    return found.reshape(()).float()
