"""MiniLM's engines for two GPUs that are not here: what the issue of their sizes comes to."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

import megacompile
from megacompile.engines.tensorrt import flavours
from tests.specs.conftest import SPECS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        flavours.missing(flavours.RTX) is not None, reason=f"{flavours.missing(flavours.RTX)}"
    ),
]


def test_engines_of_three_precisions_for_two_architectures(tmp_path: Path) -> None:
    """The spec without its metric, which takes minutes: that is tested for the CPU's spec."""
    data = yaml.safe_load((SPECS / "minilm_tensorrt.yaml").read_text())
    del data["data"]["evaluation"], data["budget"]["metric_drop"]
    data["model"] = {"python": f"{SPECS / 'minilm.py'}:build"}
    data["data"]["calibration"] = {"python": f"{SPECS / 'minilm.py'}:sentences", "samples": 8}
    path = tmp_path / "minilm_tensorrt.yaml"
    path.write_text(yaml.safe_dump(data))
    options = megacompile.Options(
        build_dir=tmp_path / "build", report_dir=tmp_path / "report", verify_each=False
    )
    result = megacompile.build(path, options)
    report = result.report
    assert (report.verdict, result.exit_code) == ("built_not_executed", 0)
    size = {}
    for candidate in report.candidates:
        assert candidate.status == "built", candidate.reason
        assert candidate.executed is False
        assert candidate.points == []
        for arch in ("sm_89", "sm_120"):
            size[candidate.variant, arch] = candidate.files[f"{arch}.engine"]
    for arch in ("sm_89", "sm_120"):
        assert size["int8", arch] <= 0.4 * size["fp32", arch]
        assert size["bf16", arch] <= 0.6 * size["fp32", arch]
