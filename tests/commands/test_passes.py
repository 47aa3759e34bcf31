"""`megacompile passes` lists what is installed."""

from __future__ import annotations

import json

import pytest

from megacompile.commands.cli import main


def test_passes_lists_options(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["passes", "--json"])
    rows = json.loads(capsys.readouterr().out)
    assert {"quantize", "cast", "simplify", "export"} <= {row["name"] for row in rows}
    assert all({"consumes", "produces", "effect", "options"} <= set(row) for row in rows)
