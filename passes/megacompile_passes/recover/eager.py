"""`recover` on a module: its weights are trained until it answers as the original again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from megacompile.errors import PassError
from megacompile.models import Eager
from megacompile.plan import PassContext, RecoveryRecord, Result, Sites, Traits
from megacompile_passes.recover.options import TRAINING, Recover

if TYPE_CHECKING:
    import torch

    from megacompile_passes.recover.loop import Recovery


class RecoverEager(Recover[Eager, Eager]):
    """Training in float32; the structure stays, and what is shared stays shared."""

    def is_meant(self) -> bool:
        return self.quantize is None

    def refusal(self, traits: Traits) -> str | None:
        if self.clip_activations is not None and traits.backend == TRAINING:
            return (
                "can't keep `clip_activations` here: the user's code builds the module of a "
                "training bundle again, without clamps; put them into the model"
            )
        return super().refusal(traits)

    def run(self, model: Eager, ctx: PassContext) -> Result[Eager]:
        from megacompile_passes.recover.data import open_data
        from megacompile_passes.recover.preparation import copied, lesson_of, recovery_of

        samples = open_data(self, ctx)
        student, clamped = copied(self, model, samples, ctx)
        flags = [parameter.requires_grad for parameter in student.module.parameters()]
        lesson = lesson_of(self, model, ctx, student.hidden)
        self._set_mode(student.module)
        recovery = recovery_of(self, student, lesson, samples, ctx, student.model.run)
        _refuse_nothing_to_do(self, recovery)
        record = recovery.run()
        _refuse_nothing_better(record)
        student.module.eval()
        for parameter, flag in zip(student.module.parameters(), flags, strict=True):
            parameter.requires_grad_(flag)
            parameter.grad = None
        sites = Sites("parameter")
        for _ in recovery.parameters:
            sites.change()
        for name in sorted(recovery.frozen):
            sites.skip(name, "frozen by the spec")
        return Result(student.model, sites, [*clamped, *recovery.state.notes], record)

    def _set_mode(self, module: torch.nn.Module) -> None:
        """Dropout and batch statistics as the options say; everything else as in evaluation."""
        from torch.nn.modules.batchnorm import _BatchNorm

        module.train(self.dropout)
        for one in module.modules():
            if isinstance(one, _BatchNorm):
                one.train(self.batchnorm == "train")


def _refuse_nothing_to_do(options: Recover[Any, Any], recovery: Recovery) -> None:
    """Distilling a model from itself trains nothing."""
    if options.task is not None or options.monitor != "loss" or options.clip_activations:
        return
    if recovery.monitor.held_out_loss() < 1e-9:
        raise PassError(
            what="`recover` has nothing to bring back: the model still answers exactly "
            "as the original",
            remedy="put it behind the lossy pass, or leave it out",
        )


def _refuse_nothing_better(record: RecoveryRecord) -> None:
    if record.best_step > 0:
        return
    first, last = record.looks[0], record.looks[-1]
    raise PassError(
        what=f"`recover` made nothing better in {record.steps} steps",
        expected=f"a better {record.monitor} than {first.value:.5g}",
        got=f"{last.value:.5g} after step {last.step}",
        remedy="another learning rate (lr_range_test: 50), more steps, or leave `recover` out",
    )
