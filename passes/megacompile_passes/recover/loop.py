"""The training run of `recover`: batches, rates, looks at the monitor, checkpoints, best weights.

It goes on from its own checkpoints after an interruption, and ends with the best weights it saw.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from megacompile.errors import PassError, did_you_mean
from megacompile.plan import Look, Metric, Metrics, PassContext, RecoveryRecord, select
from megacompile.training.batches import to_device
from megacompile.training.checkpoints import Checkpoints
from megacompile.training.precision import mixed
from megacompile.training.samples import Sampler, Samples
from megacompile.training.schedule import Cosine, range_test, set_rate
from megacompile.training.step import optimizer_of
from megacompile_passes.recover.data import divided, masked
from megacompile_passes.recover.options import Recover
from megacompile_passes.recover.teaching import Lesson, Student

LOOKS = 10


@dataclass
class _State:
    """What a run has come to; everything that a checkpoint keeps beside weights and optimizer."""

    step: int = 0
    losses: list[float] = field(default_factory=list)
    looks: list[Look] = field(default_factory=list)
    best: dict[str, torch.Tensor] | None = None
    best_at: int = 0
    without_better: int = 0
    seconds: float = 0.0
    before: Metrics = field(default_factory=dict)


class Recovery:
    """One run. `measure()` is the user's metric of the student as it is (None: there is none);
    `looking` wraps whatever must be different while the student is only looked at."""

    def __init__(
        self,
        options: Recover[Any, Any],
        student: Student,
        lesson: Lesson,
        samples: Samples,
        ctx: PassContext,
        measure: Callable[[], Metrics] | None,
        validate: Callable[[], Metrics] | None,
        batch_size: int,
        looking: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
        device: str = "cpu",
    ) -> None:
        self.options, self.student, self.lesson = options, student, lesson
        self.samples, self.ctx, self.device = samples, ctx, device
        self.measure, self.validate, self.looking = measure, validate, looking
        self.higher_is_better = False
        self.notes: list[str] = []
        training, self.held_out = divided(samples, options, ctx.seed)
        self.batch_size = batch_size
        self.sampler = Sampler(training, batch_size, ctx.seed, options.sampling == "loss-weighted")
        per_epoch = math.ceil(self.sampler.batches_per_epoch / options.accumulate)
        self.steps = options.steps or max(1, math.ceil((options.epochs or 1) * per_epoch))
        self.check_every = options.check_every or max(1, self.steps // LOOKS)
        self.frozen = frozen_names(student.module, options.freeze, student.prefix)
        self.parameters = trained_parameters(student.module, self.frozen)
        self.optimizer = optimizer_of(self.parameters, options.optimizer)
        self.rate = float(options.optimizer.options.lr)
        self.masking = torch.Generator().manual_seed(ctx.seed + 1)
        self.state = _State()

    def run(self) -> RecoveryRecord:
        """Train; the student holds the best weights afterwards.

        Raises:
            PassError: the loss isn't finite, or `monitor` names no metric. DataError: batches
                that don't fit. ModelError: every checkpoint of an interrupted run is damaged.
        """
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            torch.manual_seed(self.ctx.seed)
            checkpoints = self._resume()
            if self.state.step == 0:
                self._test_rate()
                self.state.before = self.measured()
                self._look()
            self._train(checkpoints)
            assert self.state.best is not None
            self.student.module.load_state_dict(self.state.best)
            return self._record(self.measured())

    def measured(self) -> Metrics:
        """The user's metric of the student as it is; empty if there is none."""
        if self.measure is None:
            return {}
        with self._as_answering():
            return self.measure()

    def _train(self, checkpoints: Checkpoints | None) -> None:
        kept = time.monotonic()
        schedule = self._schedule()
        while self.state.step < self.steps and not self._out_of_patience():
            start = time.monotonic()
            set_rate(self.optimizer, self.rate * schedule(self.state.step))
            loss = self._step()
            self.state.losses.append(loss)
            self.state.step += 1
            last = self.state.step == self.steps
            if last or self.state.step % self.check_every == 0:
                self._look()
            self.state.seconds += time.monotonic() - start
            self.ctx.advance(self.state.step, self.steps, self._note(loss))
            late = time.monotonic() - kept > self.options.checkpoint_seconds
            if checkpoints is not None and not last and late:
                checkpoints.save(self.state.step, self._kept())
                kept = time.monotonic()

    def _step(self) -> float:
        """One optimizer step over `accumulate` pieces; the mean loss."""
        options = self.options
        self.optimizer.zero_grad(set_to_none=True)
        total = 0.0
        for _ in range(options.accumulate):
            numbers, weights = self.sampler.next()
            batch = self._batch(numbers)
            if options.masking is not None:
                batch = masked(batch, options.masking, self.masking)
            with mixed(options.autocast, self.device):
                loss, each = self.lesson.losses(self.student, batch)
            if each is not None:
                self.sampler.learn(numbers, each)
                if self.sampler.by_loss:
                    weighted = (each * weights.to(each)).mean()
                    loss = loss - each.mean() + weighted
            value = float(loss.detach())
            if not math.isfinite(value):
                raise PassError(
                    what=f"the loss is {value} in step {self.state.step + 1} of `recover`",
                    expected="a finite number",
                    cause=f"learning rate {self.optimizer.param_groups[0]['lr']:.2g}",
                    remedy="a lower rate, `warmup`, a smaller `clip_norm`, or look at the data",
                )
            if not loss.requires_grad:
                raise PassError(
                    what="the loss of `recover` does not depend on any parameter that is trained",
                    remedy="freeze less, or learn from other outputs",
                )
            (loss / options.accumulate).backward()
            total += value / options.accumulate
        if self.state.step == 0:
            self._without_gradient()
        if options.clip_norm is not None:
            nn.utils.clip_grad_norm_(self.parameters, options.clip_norm)
        self.optimizer.step()
        return total

    def _batch(self, numbers: list[int]) -> dict[str, torch.Tensor]:
        return to_device(self.samples.take(numbers), self.device)

    def _look(self) -> None:
        """Judge the weights as they are by the monitor; the best are kept."""
        value = self._monitored()
        known = [look.value for look in self.state.looks]
        best = (max if self.higher_is_better else min)(known, default=None)
        better = best is None or (value > best if self.higher_is_better else value < best)
        self.state.looks.append(Look(step=self.state.step, value=value))
        if better:
            weights = self.student.module.state_dict()
            self.state.best = {name: one.detach().cpu().clone() for name, one in weights.items()}
            self.state.best_at, self.state.without_better = self.state.step, 0
        else:
            self.state.without_better += 1

    def _monitored(self) -> float:
        if self.options.monitor == "loss":
            return self.held_out_loss()
        source = self.validate or self.measure
        assert source is not None  # the planner has seen to it
        with self._as_answering():
            found = source()
        if self.options.monitor not in found:
            raise PassError(
                what=f"`monitor` names '{self.options.monitor}', which is no metric",
                expected="loss, " + ", ".join(found),
                remedy=did_you_mean(self.options.monitor, found),
            )
        chosen = found[self.options.monitor]
        self.higher_is_better = bool(chosen["higher_is_better"])
        return float(chosen["value"])

    def held_out_loss(self) -> float:
        """The mean loss of the samples that are not trained on."""
        total = count = 0.0
        with self._as_answering(), mixed(self.options.autocast, self.device):
            for group in self.held_out:
                for start in range(0, len(group), self.batch_size):
                    numbers = group[start : start + self.batch_size]
                    loss, _ = self.lesson.losses(self.student, self._batch(numbers))
                    total += float(loss) * len(numbers)
                    count += len(numbers)
        return total / count

    @contextlib.contextmanager
    def _as_answering(self) -> Iterator[None]:
        """The student as it will answer: no dropout, no batch statistics, no new ranges."""
        module = self.student.module
        flags = [(one, one.training) for one in module.modules()]
        for one, _ in flags:
            one.training = False
        try:
            with torch.no_grad(), self.looking():
                yield
        finally:
            for one, flag in flags:
                one.training = flag

    def _out_of_patience(self) -> bool:
        patience = self.options.patience
        return patience is not None and self.state.without_better >= patience

    def _schedule(self) -> Callable[[int], float]:
        options = self.options
        if options.schedule == "constant":
            return lambda step: min(1.0, (step + 1) / (options.warmup + 1))
        return Cosine(self.steps, options.periods, options.floor, options.warmup).factor

    def _test_rate(self) -> None:
        """Find the rate on the student itself, and put everything back."""
        steps = self.options.lr_range_test
        if steps is None:
            return
        module, sampler = self.student.module, self.sampler.state_dict()
        weights = {name: one.detach().clone() for name, one in module.state_dict().items()}
        random = self.masking.get_state(), torch.get_rng_state()

        def step(rate: float) -> float:
            set_rate(self.optimizer, rate)
            try:
                return self._step()
            except PassError:
                return math.inf

        found = range_test(step, steps)
        module.load_state_dict(weights)
        self.sampler.load_state_dict(sampler)
        self.masking.set_state(random[0])
        torch.set_rng_state(random[1])
        self.optimizer = optimizer_of(self.parameters, self.options.optimizer)
        if found is None:
            self.notes.append(
                f"the learning-rate range test saw no loss fall in {steps} steps: "
                f"{self.rate:.2g} stays"
            )
            return
        self.rate = found.rate
        self.notes.append(
            f"learning rate {found.rate:.2g} by a range test of {len(found.rates)} steps"
        )

    def _without_gradient(self) -> None:
        names = [
            name
            for name, one in self.student.module.named_parameters()
            if one.requires_grad and one.grad is None
        ]
        if names:
            shown = ", ".join(names[:3]) + (" …" if len(names) > 3 else "")
            self.notes.append(f"{len(names)} parameters get no gradient and stay: {shown}")

    def _resume(self) -> Checkpoints | None:
        if self.ctx.resume is None:
            return None
        checkpoints = Checkpoints(self.ctx.resume)
        found = checkpoints.latest()
        if found is not None:
            self._restore(found.state)
            self.notes.append(
                f"continued after step {found.number}" + (f": {found.note}" if found.note else "")
            )
        return checkpoints

    def _kept(self) -> dict[str, Any]:
        state = self.state
        return {
            "module": self.student.module.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "sampler": self.sampler.state_dict(),
            "masking": self.masking.get_state(),
            "random": torch.get_rng_state(),
            "step": state.step,
            "losses": state.losses,
            "looks": [[look.step, look.value] for look in state.looks],
            "best": state.best,
            "best_at": state.best_at,
            "without_better": state.without_better,
            "seconds": state.seconds,
            "rate": self.rate,
            "notes": self.notes,
            "higher_is_better": self.higher_is_better,
            "before": state.before,
        }

    def _restore(self, kept: Mapping[str, Any]) -> None:
        self.student.module.load_state_dict(kept["module"])
        self.optimizer.load_state_dict(kept["optimizer"])
        self.sampler.load_state_dict(kept["sampler"])
        self.masking.set_state(kept["masking"])
        torch.set_rng_state(kept["random"])
        self.state = _State(
            step=kept["step"],
            losses=list(kept["losses"]),
            looks=[Look(step=step, value=value) for step, value in kept["looks"]],
            best=dict(kept["best"]),
            best_at=kept["best_at"],
            without_better=kept["without_better"],
            seconds=kept["seconds"],
            before=kept["before"],
        )
        self.rate, self.notes = kept["rate"], list(kept["notes"])
        self.higher_is_better = kept["higher_is_better"]

    def _note(self, loss: float) -> str:
        look = self.state.looks[-1]
        return f"loss {loss:.4g}, {self._monitor_name()} {look.value:.4g} after {look.step}"

    def _monitor_name(self) -> str:
        return "held-out loss" if self.options.monitor == "loss" else self.options.monitor

    def _record(self, after: Metrics) -> RecoveryRecord:
        state = self.state
        if self._out_of_patience():
            self.notes.append(
                f"stopped after {state.step} of {self.steps} steps: "
                f"{state.without_better} looks without a better "
                f"{self._monitor_name()}"
            )
        if self.options.monitor != "loss" and self.validate is None:
            self.notes.append(
                f"the weights were chosen by {self.options.monitor} on the data that "
                "also judges them: read it as an upper end"
            )
        return RecoveryRecord(
            metric_before=_metrics(state.before),
            metric_after=_metrics(after),
            monitor=self._monitor_name(),
            steps=state.step,
            planned_steps=self.steps,
            best_step=state.best_at,
            samples=len(self.samples),
            learning_rate=self.rate,
            seconds=round(state.seconds, 1),
            looks=state.looks,
            losses=_thinned(state.losses),
            trained_parameters=sum(p.numel() for p in self.parameters),
        )


def frozen_names(module: nn.Module, selectors: list[str], prefix: str = "") -> frozenset[str]:
    """Names of parameters that `freeze` holds; one name of a shared parameter holds all.

    Raises:
        PassError: a selector matches nothing.
    """
    named = list(module.named_parameters(remove_duplicate=False))
    known = [name.removeprefix(prefix) for name, _ in named]
    chosen = select(selectors, known, "freeze") if selectors else frozenset()
    held = {id(one) for name, one in named if name.removeprefix(prefix) in chosen}
    return frozenset(name for name, one in named if id(one) in held)


def trained_parameters(module: nn.Module, frozen: frozenset[str]) -> list[nn.Parameter]:
    """The parameters to train, shared ones once; `requires_grad` is set accordingly. Of a model
    whose parameters all have requires_grad=False, as models for inference do, all are trained.

    Raises:
        PassError: none is left.
    """
    named = [(n, p) for n, p in module.named_parameters() if p.is_floating_point()]
    any_trained = any(p.requires_grad for _, p in named)
    found = []
    for name, parameter in named:
        wanted = (parameter.requires_grad or not any_trained) and name not in frozen
        parameter.requires_grad_(wanted)
        if wanted:
            found.append(parameter)
    if not found:
        raise PassError(
            what="`recover` has no parameter to train",
            got=f"{len(frozen)} frozen of {len(named)}",
            remedy="freeze less",
        )
    return found


def _metrics(found: Metrics) -> dict[str, Metric]:
    return {name: Metric(**value) for name, value in found.items()}


def _thinned(losses: list[float], most: int = 400) -> list[float]:
    """Every n-th value of a long curve."""
    return losses[:: max(1, math.ceil(len(losses) / most))]
