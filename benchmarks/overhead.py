"""Our own share of a build's time, and how soon a build with everything stored starts measuring.

    python benchmarks/overhead.py SPEC

Builds the spec twice with an empty store. Prints where the time of the first (cold) build went,
and the seconds of the second before it loads the first engine to be measured.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import megacompile


class FirstLoad:
    """Notes when measuring starts: the original's metric, or the first engine, is loaded."""

    def __init__(self) -> None:
        self.start = time.perf_counter()
        self.seconds: float | None = None

    def __call__(self, event: str, **data: Any) -> None:
        if self.seconds is None and str(data.get("message", "")).startswith("loading"):
            self.seconds = time.perf_counter() - self.start


def main() -> None:
    spec = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        options = megacompile.Options(
            build_dir=folder / "build", report_dir=folder / "report", cache_dir=folder / "cache"
        )
        cold = megacompile.build(spec, options).report.build_seconds
        assert cold is not None
        for part, seconds in cold:
            print(f"{part:<13} {seconds:7.1f} s  {100 * seconds / cold.total:5.1f} %")
        first = FirstLoad()
        megacompile.build(spec, options, first)
        print(f"everything stored: measuring starts after {first.seconds:.2f} s")


if __name__ == "__main__":
    main()
