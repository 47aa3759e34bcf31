"""`megacompile plan` over several specs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.commands.shell import ROOT, ended


def test_plan_goes_on_after_a_wrong_spec(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("[]")
    code, out, err = ended(["plan", str(wrong), str(ROOT / "specs/digits_cnn.yaml")], capsys)
    assert code == 2
    assert "digits_cnn: " in out
    assert "wrong.yaml:1:1" in err
