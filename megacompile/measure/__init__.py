"""What a model and its engines really do: the original, instruments around steps, fair races."""

from megacompile.measure.ceilings import Ceilings, least_time, measure_ceilings
from megacompile.measure.evaluation import evaluate
from megacompile.measure.instruments.base import Instrument, StepRun
from megacompile.measure.instruments.bisect import first_broken
from megacompile.measure.instruments.dump import Dump
from megacompile.measure.instruments.memory import Memory
from megacompile.measure.instruments.size import Size
from megacompile.measure.instruments.steps import StepVerification
from megacompile.measure.instruments.timing import Timing
from megacompile.measure.instruments.verification import (
    Verification,
    enforce,
    measure_error,
    record_of,
    run_all,
)
from megacompile.measure.original import Original, examine, read_record
from megacompile.measure.rounds import EngineTimes
from megacompile.measure.session import AGAIN, Contestant, Measured, Session
from megacompile.measure.statistics import (
    AAResult,
    RatioInterval,
    aa_check,
    paired_ratio,
    percentiles,
    relative_drop,
    significant,
    thin,
)

__all__ = [
    "AGAIN",
    "AAResult",
    "Ceilings",
    "Contestant",
    "Dump",
    "EngineTimes",
    "Instrument",
    "Measured",
    "Memory",
    "Original",
    "RatioInterval",
    "Session",
    "Size",
    "StepRun",
    "StepVerification",
    "Timing",
    "Verification",
    "aa_check",
    "enforce",
    "evaluate",
    "examine",
    "first_broken",
    "least_time",
    "measure_ceilings",
    "measure_error",
    "paired_ratio",
    "percentiles",
    "read_record",
    "record_of",
    "relative_drop",
    "run_all",
    "significant",
    "thin",
]
