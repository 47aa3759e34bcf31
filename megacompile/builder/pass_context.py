"""What a pass may use, made for one step of one candidate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from megacompile.engines import CompiledModel
from megacompile.measure import Original, evaluate
from megacompile.models import Form, Signature, examples, load_original
from megacompile.plan import Machine, Metrics, PassContext, Run, Traits
from megacompile.spec import Evaluation, Spec
from megacompile.training import Origin, TrainingContext


@dataclass(frozen=True)
class ContextMaker:
    """Everything of a candidate that its passes' contexts are made of."""

    spec: Spec
    base: Path
    machine: Machine
    original: Original
    signature: Signature
    traits: Traits
    on_progress: Callable[[str], None]
    on_bar: Callable[[int, int, str], None]

    def context(self, work: Path, resume: Path) -> PassContext:
        """A context; `work` is an empty folder, `resume` one that outlives an interruption."""
        source = self.spec.data.evaluation
        return PassContext(
            work=work,
            target_threads=self.machine.threads,
            seed=self.spec.seed,
            traits=self.traits,
            calibration=self.original.calibration,
            examples=lambda which: examples.make(
                self.signature, examples.sizes(self.signature, which), self.spec.seed + 1
            ),
            progress=self.on_progress,
            training=self._training(),
            base=self.base,
            original=self._load_original,
            evaluate=None if source is None else lambda run: self._evaluate(source, run),
            evaluate_with=lambda hook, run: self._evaluate(Evaluation(python=hook), run),
            resume=resume,
            advance=self.on_bar,
        )

    def _load_original(self) -> Form:
        return load_original(self.spec, self.base, self.signature)

    def _evaluate(self, source: Evaluation, run: Run) -> Metrics:
        found: dict[str, Any] = evaluate(source, self.base, CompiledModel(run, self.signature))
        return found

    def _training(self) -> TrainingContext | None:
        origin = training_origin(self.spec, self.base)
        if origin is None:
            return None
        return TrainingContext(origin, self.machine.device, self.machine.isa, self.machine.threads)


def training_origin(spec: Spec, base: Path) -> Origin | None:
    """Where the model and the data of a training spec come from; None for inference."""
    if spec.train is None or spec.model.python is None:
        return None
    return Origin(spec.model.python, base, spec.train, spec.seed)
