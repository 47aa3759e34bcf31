"""What watches a step: context managers around it, never code inside a pass."""

from megacompile.instruments.base import Instrument, StepRun
from megacompile.instruments.bisect import first_broken
from megacompile.instruments.dump import Dump
from megacompile.instruments.memory import Memory
from megacompile.instruments.size import Size
from megacompile.instruments.steps import StepVerification
from megacompile.instruments.timing import Timing
from megacompile.instruments.verification import Verification

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
