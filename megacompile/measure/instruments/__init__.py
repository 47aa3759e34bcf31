"""What watches a step: context managers around it, never code inside a pass."""

from megacompile.measure.instruments.base import Instrument, StepRun
from megacompile.measure.instruments.bisect import first_broken
from megacompile.measure.instruments.dump import Dump
from megacompile.measure.instruments.memory import Memory
from megacompile.measure.instruments.size import Size
from megacompile.measure.instruments.steps import StepVerification
from megacompile.measure.instruments.timing import Timing
from megacompile.measure.instruments.verification import Verification

__all__ = [
    "Dump",
    "Instrument",
    "Memory",
    "Size",
    "StepRun",
    "StepVerification",
    "Timing",
    "Verification",
    "first_broken",
]
