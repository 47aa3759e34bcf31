"""What both forms of `recover` begin with: the student, its lesson, and the run of training."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import Any

from megacompile.errors import PassError
from megacompile.models import Eager
from megacompile.plan import Metrics, PassContext, Run
from megacompile.system import hooks
from megacompile.training.samples import Samples
from megacompile_passes.recover.clamping import clamp_outputs
from megacompile_passes.recover.data import batch_size_of, first_batches
from megacompile_passes.recover.distillation import Distillation
from megacompile_passes.recover.hidden_states import hidden_modules
from megacompile_passes.recover.lesson import Lesson
from megacompile_passes.recover.loop import Recovery
from megacompile_passes.recover.options import Recover
from megacompile_passes.recover.students import EagerAnswers, Student


def copied(
    options: Recover[Any, Any], model: Eager, samples: Samples, ctx: PassContext
) -> tuple[EagerAnswers, list[str]]:
    """A copy of the model to train, with clamps where they are asked for, and remarks on them."""
    own = model.copy()
    student = EagerAnswers(own, hidden_modules(own.module, options.distill))
    if options.clip_activations is None:
        return student, []
    batches = first_batches(options, samples, ctx.seed)
    limits = clamp_outputs(student, options.clip_activations, batches)
    shown = ", ".join(f"{name} at {limit:.3g}" for name, limit in list(limits.items())[:5])
    more = " …" if len(limits) > 5 else ""
    return student, [f"{len(limits)} modules' outputs are clamped: {shown}{more}"]


def lesson_of(
    options: Recover[Any, Any], model: Eager, ctx: PassContext, hidden: Iterable[str]
) -> Lesson:
    """What is learned: from the original model, from the task, or from both.

    Raises:
        SpecError, ModelError: the loss or the original can't be loaded. PassError: a hidden
            module isn't there in the original.
    """
    distillation = None
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
        distillation = Distillation(options.distill, EagerAnswers(original, list(hidden)))
    return Lesson(model.signature, distillation, options.task, _task_loss(options, ctx))


def _task_loss(options: Recover[Any, Any], ctx: PassContext) -> Callable[[Any, Any], Any] | None:
    """The user's own loss, if the task has no labels."""
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


def recovery_of(
    options: Recover[Any, Any],
    student: Student,
    lesson: Lesson,
    samples: Samples,
    ctx: PassContext,
    run: Run,
    looking: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
) -> Recovery:
    """The run that trains a student; `run` answers with it, for the user's metrics."""
    return Recovery(
        options,
        student,
        lesson,
        samples,
        ctx,
        _metric_of(ctx, run),
        _validation_of(options, ctx, run),
        batch_size_of(options, samples),
        looking,
    )


def _metric_of(ctx: PassContext, run: Run) -> Callable[[], Metrics] | None:
    """The user's metric of a model, as a call."""
    evaluate = ctx.evaluate
    if evaluate is None:
        return None

    def measure() -> Metrics:
        ctx.progress("evaluating")
        return evaluate(run)

    return measure


def _validation_of(
    options: Recover[Any, Any], ctx: PassContext, run: Run
) -> Callable[[], Metrics] | None:
    """The metrics of the hook that `validate_with` names, as a call."""
    hook, evaluate = options.validate_with, ctx.evaluate_with
    if hook is None or evaluate is None:
        return None
    return lambda: evaluate(hook, run)
