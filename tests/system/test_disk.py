"""A failed write in words."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from megacompile.system.disk import disk_error

FULL = os.strerror(errno.ENOSPC)


def test_a_full_disk_names_the_file_that_did_not_fit(tmp_path: Path) -> None:
    error = disk_error(OSError(errno.ENOSPC, FULL, str(tmp_path / "big")), tmp_path)
    assert error.what == "writing failed: the disk is full"
    assert error.where == str(tmp_path / "big")
    assert error.cause == FULL


def test_a_full_disk_is_read_out_of_shutils_collection(tmp_path: Path) -> None:
    copied = shutil.Error([("a", "b", str(OSError(errno.ENOSPC, FULL)))])
    assert "the disk is full" in disk_error(copied, tmp_path).what


def test_another_cause_is_told_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError) as caught:
        (tmp_path / "file" / "inside").write_text("")
    error = disk_error(caught.value, tmp_path)
    assert error.what == "writing failed"
    assert error.cause == os.strerror(errno.ENOTDIR)
