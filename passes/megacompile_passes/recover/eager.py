"""`recover` on a module: its weights are trained until it answers as the original again."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from megacompile.errors import PassError
from megacompile.models import Eager
from megacompile.plan import Metrics, PassContext, Result, Run, Sites, Traits
from megacompile_passes.recover.options import TRAINING, Recover

if TYPE_CHECKING:
    import torch

    from megacompile.training.samples import Samples
    from megacompile_passes.recover.loop import Recovery
    from megacompile_passes.recover.teaching import EagerAnswers, Lesson

FIRST_BATCHES = 8  # what limits and ranges are taken from


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
        from megacompile_passes.recover.loop import Recovery

        samples = open_data(self, ctx)
        student, clamped = copied(self, model, samples, ctx)
        flags = [parameter.requires_grad for parameter in student.module.parameters()]
        lesson = lesson_of(self, model, ctx, student.hidden)
        self._set_mode(student.module)
        run = student.model.run
        recovery = Recovery(
            self,
            student,
            lesson,
            samples,
            ctx,
            metric_of(ctx, run),
            validation_of(self, ctx, run),
            batch_size_of(self, samples),
        )
        _refuse_nothing_to_do(self, recovery)
        record = recovery.run()
        if record.best_step == 0:
            first, last = record.looks[0], record.looks[-1]
            raise PassError(
                what=f"`recover` made nothing better in {record.steps} steps",
                expected=f"a better {record.monitor} than {first.value:.5g}",
                got=f"{last.value:.5g} after step {last.step}",
                remedy="another learning rate (lr_range_test: 50), more steps, or "
                "leave `recover` out",
            )
        student.module.eval()
        for parameter, flag in zip(student.module.parameters(), flags, strict=True):
            parameter.requires_grad_(flag)
            parameter.grad = None
        sites = Sites("parameter")
        for _ in recovery.parameters:
            sites.change()
        for name in sorted(recovery.frozen):
            sites.skip(name, "frozen by the spec")
        return Result(student.model, sites, [*clamped, *recovery.notes], record)

    def _set_mode(self, module: torch.nn.Module) -> None:
        """Dropout and batch statistics as the options say; everything else as in evaluation."""
        from torch.nn.modules.batchnorm import _BatchNorm

        module.train(self.dropout)
        for one in module.modules():
            if isinstance(one, _BatchNorm):
                one.train(self.batchnorm == "train")


def open_data(options: Recover[Any, Any], ctx: PassContext) -> Samples:
    """The samples to learn from.

    Raises:
        SpecError, DataError: they can't be found or read.
    """
    from megacompile.training.samples import open_samples

    reference = options.batches
    if reference is None:
        reference = ctx.needs_training(options.name).train.batches
    ctx.progress("reading the samples")
    return open_samples(
        reference, ctx.base, options.samples, "recover's batches", options.sampling == "pieces"
    )


def copied(
    options: Recover[Any, Any], model: Eager, samples: Samples, ctx: PassContext
) -> tuple[EagerAnswers, list[str]]:
    """A copy of the model to train, with clamps where they are asked for, and remarks on them."""
    from megacompile_passes.recover.clamping import clamp_outputs
    from megacompile_passes.recover.teaching import EagerAnswers, hidden_modules

    own = model.copy()
    student = EagerAnswers(own, hidden_modules(own.module, options.distill))
    if options.clip_activations is None:
        return student, []
    limits = clamp_outputs(
        student, options.clip_activations, first_batches(options, samples, ctx.seed)
    )
    shown = ", ".join(f"{name} at {limit:.3g}" for name, limit in list(limits.items())[:5])
    return student, [
        f"{len(limits)} modules' outputs are clamped: {shown}" + (" …" if len(limits) > 5 else "")
    ]


def first_batches(
    options: Recover[Any, Any], samples: Samples, seed: int
) -> Iterator[dict[str, torch.Tensor]]:
    """A few shuffled batches to take ranges from."""
    from megacompile.training.samples import Sampler

    sampler = Sampler(samples.groups, batch_size_of(options, samples), seed)
    for _ in itertools.repeat(None, min(FIRST_BATCHES, sampler.batches_per_epoch)):
        yield samples.take(sampler.next()[0])


def batch_size_of(options: Recover[Any, Any], samples: Samples) -> int:
    """Samples of one piece, at most."""
    if options.sampling == "pieces":
        return max(len(group) for group in samples.groups)
    return options.batch_size


def lesson_of(options: Recover[Any, Any], model: Eager, ctx: PassContext, hidden: Any) -> Lesson:
    """What is learned: from the original model, from the task, or from both.

    Raises:
        SpecError, ModelError: the loss or the original can't be loaded. PassError: a hidden
            module isn't there in the original.
    """
    from megacompile_passes.recover.teaching import EagerAnswers, Lesson

    teacher = None
    if options.distill is not None:
        assert ctx.original is not None
        original = ctx.original()
        assert isinstance(original, Eager)
        known = dict(original.module.named_modules())
        lacking = [name for name in hidden if name not in known]
        if lacking:
            raise PassError(
                what=f"the original has no module '{lacking[0]}' to learn from",
                remedy="name modules that both have in `distill.hidden`",
            )
        teacher = EagerAnswers(original, list(hidden))
    return Lesson(model.signature, options.distill, options.task, teacher, task_loss(options, ctx))


def task_loss(options: Recover[Any, Any], ctx: PassContext) -> Callable[[Any, Any], Any] | None:
    """The user's own loss, if the task has no labels."""
    from megacompile.system import hooks

    if options.task is None or options.task.labels is not None:
        return None
    reference = options.task.loss
    if reference is None:
        reference = ctx.needs_training(options.name).train.loss
    found = ctx.load_hook(reference)
    if not callable(found):
        raise PassError(
            what=f"loss '{reference}' can't be called",
            expected="a function loss(outputs, batch)",
            got=type(found).__name__,
        )
    return lambda outputs, batch: hooks.call(f"loss '{reference}'", found, outputs, batch)


def metric_of(ctx: PassContext, run: Run) -> Callable[[], Metrics] | None:
    """The user's metric of a model, as a call."""
    evaluate = ctx.evaluate
    if evaluate is None:
        return None

    def measure() -> Metrics:
        ctx.progress("evaluating")
        return evaluate(run)

    return measure


def validation_of(
    options: Recover[Any, Any], ctx: PassContext, run: Run
) -> Callable[[], Metrics] | None:
    """The metrics of the hook that `validate_with` names, as a call."""
    hook, evaluate = options.validate_with, ctx.evaluate_with
    if hook is None or evaluate is None:
        return None
    return lambda: evaluate(hook, run)


def _refuse_nothing_to_do(options: Recover[Any, Any], recovery: Recovery) -> None:
    """Distilling a model from itself trains nothing."""
    if options.task is not None or options.monitor != "loss" or options.clip_activations:
        return
    if recovery.held_out_loss() < 1e-9:
        raise PassError(
            what="`recover` has nothing to bring back: the model still answers exactly "
            "as the original",
            remedy="put it behind the lossy pass, or leave it out",
        )
