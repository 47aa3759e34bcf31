"""What a run of `recover` has come to: as its checkpoints keep it, and as the report says it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from megacompile.plan import Look, Metric, Metrics, RecoveryRecord


@dataclass
class RunState:
    """Everything that a checkpoint keeps beside weights, optimizer and random states."""

    rate: float
    step: int = 0
    losses: list[float] = field(default_factory=list)
    looks: list[Look] = field(default_factory=list)
    best: dict[str, torch.Tensor] | None = None
    best_at: int = 0
    without_better: int = 0
    seconds: float = 0.0
    before: Metrics = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def look(self, value: float, higher_is_better: bool, module: nn.Module) -> None:
        """Judge the weights as they are by the monitor's value; the best are kept."""
        known = [look.value for look in self.looks]
        best = (max if higher_is_better else min)(known, default=None)
        better = best is None or (value > best if higher_is_better else value < best)
        self.looks.append(Look(step=self.step, value=value))
        if better:
            weights = module.state_dict()
            self.best = {name: one.detach().cpu().clone() for name, one in weights.items()}
            self.best_at, self.without_better = self.step, 0
        else:
            self.without_better += 1

    def kept(self) -> dict[str, Any]:
        """As plain values and tensors, for a checkpoint."""
        return {
            "step": self.step,
            "losses": self.losses,
            "looks": [[look.step, look.value] for look in self.looks],
            "best": self.best,
            "best_at": self.best_at,
            "without_better": self.without_better,
            "seconds": self.seconds,
            "rate": self.rate,
            "notes": self.notes,
            "before": self.before,
        }

    @classmethod
    def restored(cls, kept: Mapping[str, Any]) -> RunState:
        """The state that a checkpoint kept."""
        return cls(
            step=kept["step"],
            losses=list(kept["losses"]),
            looks=[Look(step=step, value=value) for step, value in kept["looks"]],
            best=dict(kept["best"]),
            best_at=kept["best_at"],
            without_better=kept["without_better"],
            seconds=kept["seconds"],
            rate=kept["rate"],
            notes=list(kept["notes"]),
            before=kept["before"],
        )

    def record(
        self,
        after: Metrics,
        *,
        monitor: str,
        planned_steps: int,
        samples: int,
        trained_parameters: int,
    ) -> RecoveryRecord:
        """What the report says of the run."""
        return RecoveryRecord(
            metric_before=_metrics(self.before),
            metric_after=_metrics(after),
            monitor=monitor,
            steps=self.step,
            planned_steps=planned_steps,
            best_step=self.best_at,
            samples=samples,
            learning_rate=self.rate,
            seconds=round(self.seconds, 1),
            looks=self.looks,
            losses=_thinned(self.losses),
            trained_parameters=trained_parameters,
        )


def _metrics(found: Metrics) -> dict[str, Metric]:
    return {name: Metric(**value) for name, value in found.items()}


def _thinned(losses: list[float], most: int = 400) -> list[float]:
    """Every n-th value of a long curve."""
    return losses[:: max(1, math.ceil(len(losses) / most))]
