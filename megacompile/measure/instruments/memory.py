"""Peak resident memory of the process during a step."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from megacompile.measure.instruments.base import StepRun

_SELF = Path("/proc/self")


def reset_peak() -> None:
    """Start a new measurement (Linux: writing 5 to clear_refs resets VmHWM)."""
    with contextlib.suppress(OSError):
        (_SELF / "clear_refs").write_text("5")


def peak_mb() -> float | None:
    """Peak resident memory since the last reset, in MB; None where /proc has none."""
    with contextlib.suppress(OSError, ValueError):
        for line in (_SELF / "status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return round(int(line.split()[1]) * 1024 / 1e6, 1)
    return None


class Memory:
    """Notes the peak in the step's record."""

    @contextmanager
    def around(self, run: StepRun) -> Iterator[None]:
        reset_peak()
        try:
            yield
        finally:
            run.record.peak_memory_mb = peak_mb()
