"""`megacompile write-lmdb` writes a database, and none over another."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.commands.shell import ended


def test_a_database_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("lmdb")
    np.savez(tmp_path / "data.npz", x=np.zeros((5, 2), np.float32), y=np.arange(5))
    command = ["write-lmdb", f"npz:{tmp_path}/data.npz", f"{tmp_path}/out", "--limit", "4"]
    code, out, err = ended(command, capsys)
    assert code == 0
    assert "4 samples" in out
    assert "x: float32 [2]" in out
    assert f"batches: lmdb:{tmp_path}/out" in out
    assert "4 of 4" in err
    code, _, err = ended(command, capsys)
    assert code == 2
    assert "--overwrite" in err
    assert ended([*command, "--overwrite", "--names", "y"], capsys)[0] == 0
    code, _, err = ended([*command[:-1], "0"], capsys)
    assert code == 2
    assert "is no number of samples" in err
