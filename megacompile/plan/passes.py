"""What a pass is. A pass consumes one form and produces one form; its fields are its options."""

from __future__ import annotations

import fnmatch
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict

from megacompile.errors import PassError, did_you_mean
from megacompile.models import Feeds, Form, Tolerance
from megacompile.report import RecoveryRecord
from megacompile.system import hooks, missing
from megacompile.training import TrainingContext

Run = Callable[[Feeds], Feeds]
Metrics = dict[str, dict[str, Any]]
"""Name -> the fields of a report's Metric."""

In = TypeVar("In", bound=Form)
Out = TypeVar("Out", bound=Form)


class Effect(Enum):
    """A pass's promise about the numbers."""

    EXACT = "EXACT"
    """The same up to float rounding; enforced."""
    NUMERIC = "NUMERIC"
    """Rounding of a named dtype; enforced."""
    LOSSY = "LOSSY"
    """Whatever it costs is measured, and judged by the budget."""

    @property
    def rank(self) -> int:
        """0 for the strictest promise."""
        return list(Effect).index(self)

    def tolerance(self, dtype: str = "float32") -> Tolerance:
        """What the promise allows; `dtype` is the narrowest one of the arithmetic."""
        if self is Effect.EXACT:
            return Tolerance.rounding()
        return Tolerance.of(dtype) if self is Effect.NUMERIC else Tolerance()


class Fact(Enum):
    """What is known about the model at a point of the plan."""

    TRAINABLE = "trainable"
    FLOAT32_WEIGHTS = "float32 weights"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"
    QUANTIZED = "quantized"
    UNQUANTIZED = "not quantized"
    ASYMMETRIC = "asymmetric quantization"


@dataclass
class Sites:
    """Places a pass may change: how many matched, which changed, why the rest was skipped."""

    kind: str
    matched: int = 0
    changed: int = 0
    skipped: list[tuple[str, str]] = field(default_factory=list)

    def change(self) -> None:
        """Count a place that was changed."""
        self.matched += 1
        self.changed += 1

    def skip(self, site: str, reason: str) -> None:
        """Count a place that was left, and say why."""
        self.matched += 1
        self.skipped.append((site, reason))


@dataclass
class Result(Generic[Out]):
    """What a pass hands back: the model, the sites, and remarks for the report; `recovery` if it
    trained the model."""

    model: Out
    sites: Sites
    notes: list[str] = field(default_factory=list)
    recovery: RecoveryRecord | None = None


@dataclass(frozen=True)
class Traits:
    """What a backend wants of the passes before it; passes resolve their `auto` by it.

    `symmetric`: zero points must be 0. `dynamic_ranges`: it takes activations that are quantized
    by the ranges of each call.
    """

    backend: str
    opset: int | None = None
    symmetric: bool = False
    quantizer: str | None = None
    dynamic_ranges: bool = True


@dataclass
class PassContext:
    """What a pass may use besides the model.

    `work` is an empty folder for files. `calibration()` yields feeds of the user's hook, each
    one sample, anew at every call. `examples(sizes)` makes feeds with storages of their own.
    `training` is there in workload `training` alone. `load_hook` imports what FILE.py:NAME
    beside the spec, or package.module:NAME, names; `base` is the spec's folder. `original()`
    loads the model as the user gave it. `evaluate(run)` gives the metrics of the user's hook
    `data.evaluation` (None without one), `evaluate_with(hook, run)` those of another. `resume` is
    a folder that outlives an interruption, and is removed when the step is done.
    `advance(done, total, note)` shows a bar.
    """

    work: Path
    target_threads: int
    seed: int
    traits: Traits
    calibration: Callable[[], Iterator[Feeds]]
    examples: Callable[[Literal["min", "typical", "max", "odd"]], Feeds]
    progress: Callable[[str], None] = lambda message: None
    training: TrainingContext | None = None
    base: Path = Path()
    original: Callable[[], Form] | None = None
    evaluate: Callable[[Run], Metrics] | None = None
    evaluate_with: Callable[[str, Run], Metrics] | None = None
    resume: Path | None = None
    advance: Callable[[int, int, str], None] = lambda done, total, note: None

    def load_hook(self, reference: str) -> Any:
        """The user's object that an option names.

        Raises:
            SpecError: it can't be found or imported.
        """
        return hooks.load(reference, self.base)

    def needs_training(self, pass_name: str) -> TrainingContext:
        """The training part.

        Raises:
            PassError: the spec's workload is another one.
        """
        if self.training is None:
            raise PassError(
                what=f"'{pass_name}' needs to know how the model is trained",
                expected="workload: training, with `train`",
                got="inference",
                remedy=f"leave '{pass_name}' out",
            )
        return self.training


class Pass(BaseModel, ABC, Generic[In, Out]):
    """Base of all passes: a frozen object whose fields are the options of the spec."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: ClassVar[str]
    effect: ClassVar[Effect]
    requires: ClassVar[frozenset[Fact]]
    provides: ClassVar[frozenset[Fact]]
    invalidates: ClassVar[frozenset[Fact]]
    cleanup: ClassVar[bool] = False
    """A clean-up may find nothing to do; a transformation that changed nothing is an error."""
    insertable: ClassVar[bool] = False
    """A conversion that the planner may insert by itself, with default options."""
    libraries: ClassVar[tuple[str, ...]] = ()
    """Distributions whose versions change the outcome; they are part of the cache key."""

    @abstractmethod
    def run(self, model: In, ctx: PassContext) -> Result[Out]:
        """Produce a new model; the given one stays as it is, even after a failure.

        Raises:
            PassError: the model can't be transformed, or a selector matches nothing.
        """

    def promised(self) -> Effect:
        """The effect under these options."""
        return self.effect

    def provided(self) -> frozenset[Fact]:
        """The facts provided under these options."""
        return self.provides

    def resolve(self, traits: Traits) -> Pass[In, Out]:
        """The pass with every `auto` option settled for a backend."""
        return self

    def needs_calibration(self) -> bool:
        """Whether it can't do without `data.calibration` under these options."""
        return False

    def uses_evaluation(self) -> bool:
        """Whether the outcome depends on `data.evaluation`: its source is then part of the cache
        key."""
        return False

    def needs_evaluation(self) -> bool:
        """Whether it can't do without `data.evaluation`."""
        return False

    def references(self) -> tuple[str, ...]:
        """FILE.py:NAME of the user's code that the outcome depends on besides the model; their
        source is part of the cache key."""
        return ()

    def is_meant(self) -> bool:
        """Whether the options mean this class, where a name has several for one form."""
        return True

    def refusal(self, traits: Traits) -> str | None:
        """Why this pass can't precede that backend, with what to write instead; None if it can."""
        return None

    def unsupported(self, device: str, isa: Sequence[str]) -> PassError | None:
        """What the target can't do of what the options ask for, known before anything runs.

        `device` is cpu or cuda, `isa` names instruction sets of the CPU.
        """
        return None

    def missing_libraries(self) -> list[str]:
        """The distributions it can't do without that are not installed."""
        return missing(self.libraries)


def select(selectors: Sequence[str], names: Sequence[str], option: str) -> frozenset[str]:
    """The names that selectors (exact, or globs like `encoder.*`) match.

    Raises:
        PassError: a selector matches nothing; near matches are named.
    """
    chosen: set[str] = set()
    for selector in selectors:
        found = [n for n in names if n == selector or fnmatch.fnmatchcase(n, selector)]
        if not found:
            raise PassError(
                what=f"selector '{selector}' of `{option}` matches nothing",
                expected="a name or a pattern of one",
                got=f"{len(names)} names, e.g. {', '.join(list(names)[:5]) or 'none'}",
                remedy=did_you_mean(selector, names),
            )
        chosen.update(found)
    return frozenset(chosen)
