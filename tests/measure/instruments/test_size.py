"""What a step leaves."""

from __future__ import annotations

from megacompile.measure.instruments.size import Size
from tests.measure.instruments.watched import Told, step_run, watch


def test_size_and_parameters_of_what_is_there() -> None:
    through, stopped = step_run(Told({})), step_run()
    for run in (through, stopped):
        watch(Size(), run)
    assert (through.record.size_bytes, through.record.parameters) == (28, 7)
    assert (stopped.record.size_bytes, stopped.record.parameters) == (None, None)
