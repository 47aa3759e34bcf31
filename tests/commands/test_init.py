"""`megacompile init` says what it wrote and what is next."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.commands.shell import ended


def test_a_whole_spec_is_to_be_planned(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = ended(["init", f"{models}:linear"], capsys)
    path = models.with_name("models.yaml")
    assert code == 0
    assert out.splitlines() == [f"written: {path}", f"next: megacompile plan {path}"]
    assert path.is_file()


def test_lines_that_wait_are_listed(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = models.with_name("odd.yaml")
    code, out, _ = ended(["init", f"{models}:Odd", "-o", str(path)], capsys)
    written, *waiting, last = out.splitlines()
    assert code == 0
    assert written == f"written: {path}"
    assert len(waiting) == 4
    assert all(line.startswith(f"{path}:") and "FILL IN" in line for line in waiting)
    assert last == f"next: fill in the lines above, then megacompile plan {path}"


def test_what_is_there_is_not_overwritten(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    models.with_name("models.yaml").write_text("mine")
    code, out, err = ended(["init", f"{models}:linear"], capsys)
    assert (code, out) == (2, "")
    assert "overwrites nothing" in err
