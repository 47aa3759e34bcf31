"""An optimised step against the plain one: loss, every gradient by name, and parameters later on.

Both start from the same weights, seed and batches. Gradients are compared where the plain one
is more than rounding noise: a bias that a softmax or a normalization cancels has a gradient of
exactly zero in theory, and noise of its own in every order of summation.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import torch

from megacompile.errors import ModelError
from megacompile.models import Tolerance
from megacompile.plan import Effect
from megacompile.report import StepError
from megacompile.training import distribution
from megacompile.training.loading import Batch
from megacompile.training.step import TrainingStep

NOISE = 3e-5  # of the largest root mean square of any gradient
# Sums in another order: losses are single sums, gradients go back through all of the model, and
# an optimizer that divides by gradients' sizes turns the smallest of them into whole steps.
EXACT_LOSS, EXACT_GRADIENT, EXACT_ONE, EXACT_MANY = 1e-5, 2e-3, 0.02, 0.1
Tensors = dict[str, torch.Tensor]


@dataclass
class Trace:
    """What a step did: the losses, the first gradients, and parameters before, after one and
    after all steps (by name, tied ones once)."""

    losses: list[float]
    gradients: Tensors
    start: Tensors
    one: Tensors
    many: Tensors = field(default_factory=dict)
    skipped: int = 0

    @property
    def steps(self) -> int:
        """How many optimizer steps were taken."""
        return len(self.losses)


def trace(step: TrainingStep, batches: Iterable[Batch], steps: int) -> Trace:
    """Take `steps` optimizer steps and keep what a comparison needs."""
    start = _parameters(step)
    losses: list[float] = []
    gradients: Tensors = {}
    one: Tensors = {}
    for number, batch in enumerate(itertools.islice(batches, steps)):
        losses.append(step.gather(batch))
        if number == 0:
            gradients = {name: value.cpu() for name, value in step.gradients().items()}
        step.update()
        if number == 0:
            one = _parameters(step)
    many = _parameters(step) if steps > 1 else {}
    return Trace(losses, gradients, start, one, many, step.skipped)


def _parameters(step: TrainingStep) -> Tensors:
    found: Tensors = {}
    for name, one in step.parameters().items():
        found[name] = distribution.whole(one).detach().float().cpu().clone()
    return found


def check_finite(plain: Trace) -> None:
    """The plain step is what all others are held against.

    Raises:
        ModelError: it diverges: its losses or parameters are not finite.
    """
    number = next((n for n, loss in enumerate(plain.losses, 1) if not math.isfinite(loss)), None)
    last = {**plain.one, **plain.many}
    broken = next((name for name, value in last.items() if not bool(value.isfinite().all())), None)
    if number is not None:
        got = f"loss {plain.losses[number - 1]} at step {number}"
    elif broken is not None:
        got = f"parameter '{broken}' is not finite after {_steps(plain.steps)}"
    else:
        return
    raise ModelError(
        what="the plain step diverges",
        where="train",
        got=got,
        expected=f"finite losses and parameters over {_steps(plain.steps)}",
        remedy="lower the learning rate, or set clip_norm",
    )


def compare_traces(plain: Trace, other: Trace) -> StepError:
    """The differences, the worst by name. A gradient that is missing counts as zero."""
    scale = max((_rms(g) for g in plain.gradients.values()), default=0.0)
    cosine, worst, relative, relative_worst = 1.0, "", 0.0, ""
    noisy: list[str] = []
    for name, expected in plain.gradients.items():
        got = other.gradients.get(name)
        got = torch.zeros_like(expected) if got is None else got
        if not bool(got.isfinite().all()):
            return _broken(plain, other, name)
        if _rms(expected) <= NOISE * scale:
            noisy.append(name)
            continue
        this_cosine, this_relative = _difference(expected, got)
        if this_cosine <= cosine:
            cosine, worst = this_cosine, name
        if this_relative >= relative:
            relative, relative_worst = this_relative, name
    note = None
    if noisy:
        shown = ", ".join(noisy[:3]) + (", …" if len(noisy) > 3 else "")
        note = f"{len(noisy)} gradients are rounding noise and are not compared: {shown}"
    return StepError(
        loss=_relative(plain.losses[0], other.losses[0]),
        cosine_min=cosine,
        worst=worst,
        relative_max=relative,
        relative_worst=relative_worst,
        after_one=_distance(plain.start, plain.one, other.one),
        after_many=_distance(plain.start, plain.many, other.many) if plain.many else None,
        many=plain.steps if plain.many else None,
        parameters=len(plain.gradients),
        note=note,
    )


def broken_step(found: StepError, effect: Effect, dtype: str) -> str | None:
    """What breaks the promise of an effect, in words; None if it holds."""
    if not math.isfinite(found.relative_max) or not math.isfinite(found.loss):
        return found.note or "the loss is not finite"
    for steps, distance in ((1, found.after_one), (found.many, found.after_many)):
        if distance is not None and not math.isfinite(distance):
            return f"parameters are not finite after {_steps(steps)}"
    if effect is Effect.LOSSY:
        return None
    if effect is Effect.NUMERIC:
        least = Tolerance.of(dtype).cosine
        assert least is not None
        if found.cosine_min < least:
            return (
                f"the gradient of '{found.worst}' has a cosine of {found.cosine_min:.5f} to "
                f"the plain step's, below {least} for {dtype}"
            )
        return None
    if found.loss > EXACT_LOSS:
        return f"the loss differs by {found.loss:.2g} of the plain step's"
    if found.relative_max > EXACT_GRADIENT:
        return (
            f"the gradient of '{found.relative_worst}' differs by {found.relative_max:.2g} of "
            "its norm"
        )
    for steps, distance, allowed in (
        (1, found.after_one, EXACT_ONE),
        (found.many, found.after_many, EXACT_MANY),
    ):
        if distance is not None and distance > allowed:
            return (
                f"parameters after {_steps(steps)} are off by {distance:.2g} of the way that "
                "the plain step took"
            )
    return None


def _steps(number: int | None) -> str:
    return f"{number} step{'s' if number != 1 else ''}"


def _broken(plain: Trace, other: Trace, name: str) -> StepError:
    return StepError(
        loss=_relative(plain.losses[0], other.losses[0]),
        cosine_min=-1.0,
        worst=name,
        relative_max=math.inf,
        relative_worst=name,
        parameters=len(plain.gradients),
        note=f"the gradient of '{name}' is not finite",
    )


def _rms(tensor: torch.Tensor) -> float:
    return float(tensor.double().square().mean().sqrt()) if tensor.numel() else 0.0


def _difference(expected: torch.Tensor, got: torch.Tensor) -> tuple[float, float]:
    """Cosine, and the difference's norm over the expected norm."""
    a, b = expected.double().flatten(), got.double().flatten()
    norm = float(a.norm())
    product = norm * float(b.norm())
    cosine = float(a @ b) / product if product else 0.0
    return max(-1.0, min(1.0, cosine)), float((a - b).norm()) / norm


def _relative(expected: float, got: float) -> float:
    return abs(got - expected) / max(abs(expected), 1e-12)


def _distance(
    start: Mapping[str, torch.Tensor],
    plain: Mapping[str, torch.Tensor],
    other: Mapping[str, torch.Tensor],
) -> float:
    """How far two ends lie apart, over the length of the plain way."""
    way = apart = 0.0
    for name, end in plain.items():
        way += float((end - start[name]).double().square().sum())
        apart += float((end - other[name]).double().square().sum())
    return math.sqrt(apart / way) if way else math.sqrt(apart)
