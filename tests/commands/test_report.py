"""`megacompile report` writes a report's views again from its JSON."""

from __future__ import annotations

from pathlib import Path

import pytest

from megacompile.report.store import read_report, write_report
from tests.commands.shell import ended
from tests.report.samples import sample_report


@pytest.mark.parametrize("named", ["", "report.json"])
def test_the_views_come_back(
    named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_report(sample_report(), tmp_path)
    before = {name: (tmp_path / name).read_text() for name in ("report.html", "report.md")}
    for name in before:
        (tmp_path / name).unlink()
    code, out, _ = ended(["report", str(tmp_path / named)], capsys)
    assert code == 0
    assert out == f"written: {tmp_path / 'report.html'}\n"
    assert {name: (tmp_path / name).read_text() for name in before} == before


def test_into_another_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_report(sample_report(), tmp_path / "one")
    (tmp_path / "one" / "report.html").unlink()
    other = tmp_path / "other"
    assert ended(["report", str(path), "--output", str(other)], capsys)[0] == 0
    assert read_report(other) == read_report(path)
    assert (other / "report.html").is_file()
    assert not (tmp_path / "one" / "report.html").exists()
