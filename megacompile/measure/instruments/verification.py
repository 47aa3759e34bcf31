"""Is the answer still right? Each step's outputs against the original's."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from megacompile.errors import MegacompileError, VerificationError
from megacompile.measure.instruments.base import StepRun
from megacompile.models import Comparison, Feeds, InputSet, compare
from megacompile.plan import Effect
from megacompile.report import ErrorRecord


class Verification:
    """EXACT and NUMERIC are enforced; LOSSY is recorded, but for NaN, shapes and dead channels."""

    def __init__(self, sets: Sequence[InputSet]) -> None:
        self.sets = sets

    @contextmanager
    def around(self, run: StepRun) -> Iterator[None]:
        yield
        if run.after is None:
            return
        after = run.after
        start = time.perf_counter()
        found = measure_error(self.sets, after.run)
        run.record.verification_seconds = round(time.perf_counter() - start, 3)
        run.record.error = record_of(found, run.emulated)
        enforce(found, run.effect, run.dtype, run.record.pass_)


def measure_error(sets: Sequence[InputSet], run: Callable[[Feeds], Feeds]) -> Comparison:
    """Run a model on all input sets and compare.

    Raises:
        VerificationError: the model itself can't be run on one of them.
    """
    return compare(sets, run_all(sets, run))


def run_all(sets: Sequence[InputSet], run: Callable[[Feeds], Feeds]) -> list[Feeds]:
    """The outputs for every input set.

    Raises:
        VerificationError: the model can't be run on one of them; its shapes are named.
    """
    results = []
    for one in sets:
        try:
            results.append(run(one.feeds))
        except MegacompileError:
            raise
        except Exception as error:
            shapes = ", ".join(f"{n} {list(a.shape)}" for n, a in one.feeds.items())
            lines = str(error).strip().splitlines() or [""]
            raise VerificationError(
                what=f"the result can't be run on {one.label}",
                got=shapes,
                cause=f"{type(error).__name__}: {lines[0]}",
                remedy="a size was frozen on the way if other sizes work",
            ) from error
    return results


def record_of(found: Comparison, emulated: bool = False) -> ErrorRecord:
    """The comparison for the report. The cosine is of real data where the spec has some."""
    note = None
    if found.cosine_real is not None and found.cosine_real - found.cosine_min > 1e-4:
        note = f"cosine of the worst calibration sample; made-up inputs: {found.cosine_min:.4f}"
    if emulated:
        emulation = "float16 was emulated in float32 on this machine: overflow would not show"
        note = f"{note}; {emulation}" if note else emulation
    cosine = found.cosine_real if found.cosine_real is not None else found.cosine_min
    return ErrorRecord(
        max_abs=found.max_abs,
        relative=found.relative,
        cosine_min=cosine,
        inputs=found.inputs,
        dead_channels=found.dead_channels[:50],
        worst=found.worst,
        note=note,
    )


def enforce(found: Comparison, effect: Effect, dtype: str, step: str) -> None:
    """Raise if the comparison breaks what the steps so far promise.

    Raises:
        VerificationError: naming the step, the output and the difference.
    """
    broken = found.broken(effect.tolerance(dtype))
    if broken is None:
        return
    promise = {
        Effect.EXACT: "the same numbers up to float rounding",
        Effect.NUMERIC: f"rounding of {dtype}",
        Effect.LOSSY: "finite values and living channels",
    }[effect]
    remedy = {
        Effect.EXACT: f"leave '{step}' out, or report it: this is a fault of the step",
        Effect.NUMERIC: "keep more of the model in float32 (`keep`)",
        Effect.LOSSY: "quantize per channel, or keep the layers before that output",
    }[effect]
    raise VerificationError(
        what=f"'{step}' broke its promise", expected=promise, got=broken, remedy=remedy
    )
