"""Builds of a model against itself under a load on one core: how many claim a difference?

    python benchmarks/aa.py [BUILDS]

The candidate is the unchanged model on the engine that is also the baseline. Every claim would be
false. Prints each build's speed-up with its interval, and the count of claims.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import megacompile
from megacompile.measure.statistics import RatioInterval, significant

MODEL = """
import torch
from torch import nn

def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(),
                         nn.Linear(256, 10))
"""

SPEC = {
    "name": "itself",
    "model": {"python": "model.py:build"},
    "inputs": {"input": {"shape": [16, 256]}},
    "backends": ["onnxruntime"],
    "benchmark": {"baselines": ["onnxruntime"], "seconds": 3},
}


def main() -> None:
    builds = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    busy = "import os\nos.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\nwhile True: pass"
    load = subprocess.Popen([sys.executable, "-c", busy])
    claims = withheld = 0
    try:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "model.py").write_text(MODEL)
            options = megacompile.Options(
                build_dir=folder / "build", report_dir=folder / "report", cache_dir=folder / "cache"
            )
            for number in range(builds):
                spec = megacompile.Spec.model_validate({**SPEC, "seed": number})
                report = megacompile.build(spec, options, base=folder).report
                speedup = report.candidates[0].points[0].speedup
                check = report.aa_check
                assert check is not None
                if speedup is None:
                    withheld += 1
                    print(f"{number + 1:>3}: withheld ({check.note})", flush=True)
                    continue
                floor = max(0.02, abs(check.ratio - 1), (check.high - check.low) / 2)
                interval = RatioInterval(speedup.median, speedup.low, speedup.high)
                claim = significant(interval, floor)
                claims += report.verdict == "improved" or claim != "no difference"
                print(
                    f"{number + 1:>3}: {speedup.median:.3f} [{speedup.low:.3f}, "
                    f"{speedup.high:.3f}] {report.verdict}, {claim}",
                    flush=True,
                )
    finally:
        load.kill()
    print(f"{claims} of {builds} builds claim a difference; {withheld} withheld their figures")


if __name__ == "__main__":
    main()
