"""A command as a person types it, in this process."""

from __future__ import annotations

from pathlib import Path

import pytest

from megacompile.commands.cli import main

ROOT = Path(__file__).resolve().parents[2]


SPECS = sorted((ROOT / "specs").glob("*.yaml"))


def ended(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[object, str, str]:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err
    return caught.value.code, captured.out, captured.err
