"""What `recover` learns: from the original model, from the task, or from both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from megacompile.models import Signature
from megacompile_passes.recover.distillation import Distillation
from megacompile_passes.recover.option_groups import Task
from megacompile_passes.recover.students import Batch, Student
from megacompile_passes.recover.task_loss import class_losses, own_loss


class Lesson:
    """The loss of a batch: distillation, the task, or their weighted sum."""

    def __init__(
        self,
        signature: Signature,
        distillation: Distillation | None,
        task: Task | None,
        task_loss: Callable[[Any, Batch], Any] | None,
    ) -> None:
        self.signature, self.distillation = signature, distillation
        self.task, self.task_loss = task, task_loss

    def losses(self, student: Student, batch: Batch) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The batch's mean loss, and the loss of every sample (None if the task's own loss is
        all there is).

        Raises:
            DataError, PassError, ModelError: batch, outputs and options don't fit together.
        """
        answers = student.answers(batch)
        each: list[torch.Tensor] = []
        total: list[torch.Tensor] = []
        if self.distillation is not None:
            each.append(self.distillation.losses(answers, batch))
        if self.task is not None and self.task.labels is not None:
            each.append(self.task.weight * class_losses(self.task, answers, batch))
        elif self.task is not None:
            assert self.task_loss is not None
            own = own_loss(self.task_loss, self.signature, answers, batch)
            total.append(self.task.weight * own)
        per_sample = torch.stack(each).sum(0) if each else None
        if per_sample is not None:
            total.append(per_sample.mean())
        return torch.stack(total).sum(), per_sample
