"""A step that instruments can watch, and a form that answers what it is told."""

from __future__ import annotations

from pathlib import Path

from megacompile.measure.instruments.base import Instrument, StepRun
from megacompile.models import Feeds, Form, Signature
from megacompile.plan import Effect
from megacompile.report import Step


class Told(Form):
    """A form with given answers, of 7 parameters in 28 bytes."""

    name = "Told"

    def __init__(self, answers: Feeds) -> None:
        self.answers = answers

    def run(self, feeds: Feeds) -> Feeds:
        return self.answers

    def save(self, folder: Path) -> None:
        (folder / "model").write_text("told")

    @classmethod
    def load(cls, folder: Path, signature: Signature) -> Told:
        raise NotImplementedError

    def size_bytes(self) -> int:
        return 28

    def parameters(self) -> int:
        return 7


def step_run(after: Form | None = None, effect: Effect = Effect.EXACT) -> StepRun:
    record = Step.model_validate({"pass": "lib:fold", "form": "Told", "effect": effect.value})
    return StepRun(3, record, effect, "float32", after)


def watch(instrument: Instrument, run: StepRun) -> StepRun:
    """The step, watched by an instrument from its start to its end."""
    with instrument.around(run):
        pass
    return run
