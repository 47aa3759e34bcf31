"""`megacompile diff` compares two reports, and fails a script where it is asked to."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from megacompile.report.store import write_report
from tests.commands.shell import ended
from tests.report import samples


@pytest.fixture
def reports(tmp_path: Path) -> tuple[str, str]:
    before, after = tmp_path / "before", tmp_path / "after"
    write_report(samples.sample_report(), before)
    write_report(samples.later_report(), after)
    return str(before), str(after)


def test_what_got_worse_is_said(
    reports: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = ended(["diff", *reports], capsys)
    assert code == 0
    assert "worse" in out
    assert "int8/openvino" in out


def test_a_script_can_fail_on_it(
    reports: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    before, after = reports
    assert ended(["diff", before, after, "--fail-on-worse"], capsys)[0] == 3
    assert ended(["diff", before, before, "--fail-on-worse"], capsys)[0] == 0


def test_the_difference_as_data(
    reports: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    found = json.loads(ended(["diff", *reports, "--json"], capsys)[1])
    (mine,) = [one for one in found["candidates"] if one["name"] == "int8/openvino"]
    significant = [one for one in mine["changes"] if one["significant"]]
    worse = {one["quantity"] for one in significant if one["direction"] == "worse"}
    assert {"speed-up", "latency", "size"} <= worse
