"""`megacompile run` answers inputs out of a file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.commands.shell import ended
from tests.engines.bundles import X, make


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("run"))


def test_outputs_are_written_and_described(
    bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(tmp_path / "in.npz", x=X)
    given, written = str(tmp_path / "in.npz"), tmp_path / "out.npz"
    code, out, _ = ended(["run", str(bundle), "--input", given, "--output", str(written)], capsys)
    assert code == 0
    assert np.load(written)["y"].shape == (2, 4)
    assert f"written: {written}" in out
    assert "y: float32 [2, 4]" in out


def test_what_is_no_bundle_or_no_input_is_said(
    bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(tmp_path / "in.npz", x=X)
    code, _, err = ended(["run", str(tmp_path), "--input", str(tmp_path / "in.npz")], capsys)
    assert code == 2
    assert "no bundle there" in err
    (tmp_path / "text.npz").write_text("x")
    code, out, err = ended(["run", str(bundle), "--input", str(tmp_path / "text.npz")], capsys)
    assert code == 2
    assert "the input file can't be read" in err
    assert out == ""
