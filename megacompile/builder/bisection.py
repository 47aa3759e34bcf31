"""After a broken engine whose steps weren't looked at: which stored step broke its promise."""

from __future__ import annotations

from megacompile.builder.manager import CandidateRun
from megacompile.measure import StepVerification, first_broken, measure_error
from megacompile.plan import Effect, PlannedStep
from megacompile.system import Entry
from megacompile.training import Training


def find_guilty(run: CandidateRun, effect: Effect, dtype: str) -> str | None:
    """The name of the first step whose stored form answers wrongly; None if none does."""
    known = [(planned, entry) for planned, entry in run.stored if entry is not None]

    def broken(item: tuple[PlannedStep, Entry]) -> bool:
        planned, entry = item
        found = measure_error(run.sets, run.load_stored(planned.form, entry).run)
        return found.broken(effect.tolerance(dtype)) is not None

    guilty = first_broken(known, broken)
    return guilty[0].pass_.name if guilty else None


def find_guilty_step(run: CandidateRun, verification: StepVerification, steps: int) -> str | None:
    """The first stored training step that breaks its promise over many steps."""
    from megacompile.measure.training.comparison import broken_step

    known = [
        (number, planned, entry)
        for number, (planned, entry) in enumerate(run.stored)
        if entry is not None and planned.form == Training.name
    ]

    def broken(item: tuple[int, PlannedStep, Entry]) -> bool:
        number, _, entry = item
        form = run.load_stored(Training.name, entry)
        assert isinstance(form, Training)
        found = verification.measure(form, steps)
        return broken_step(found, *run.promise(number)) is not None

    guilty = first_broken(known, broken)
    return guilty[1].pass_.name if guilty else None
