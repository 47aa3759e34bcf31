"""One build at a time for one output folder, and the lock goes with the process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from megacompile.errors import MegacompileError
from megacompile.system.locks import output_lock

HOLD = """
import sys
from pathlib import Path
from megacompile.system.locks import output_lock
with output_lock(Path(sys.argv[1]), "toy"):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock of `toy` until its input ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


def test_a_second_build_is_told_who_holds_it(holder: subprocess.Popen[str], tmp_path: Path) -> None:
    for _ in range(2):  # trying leaves the holder's number
        with (
            pytest.raises(MegacompileError, match="another build of 'toy' is running") as caught,
            output_lock(tmp_path, "toy"),
        ):
            pass
        assert caught.value.got == f"process {holder.pid}"
        assert caught.value.where == str(tmp_path)


def test_another_name_is_another_lock(holder: subprocess.Popen[str], tmp_path: Path) -> None:
    with output_lock(tmp_path, "other"):
        assert holder.poll() is None


@pytest.mark.parametrize("end", ["finished", "killed"])
def test_the_lock_ends_with_its_process(
    holder: subprocess.Popen[str], end: str, tmp_path: Path
) -> None:
    if end == "killed":
        holder.send_signal(signal.SIGKILL)
    holder.communicate()
    with output_lock(tmp_path, "toy"):
        assert (tmp_path / ".toy.owner").read_text() == str(os.getpid())


def test_it_is_free_again_after_a_failure(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    with pytest.raises(RuntimeError), output_lock(folder, "toy"):
        raise RuntimeError
    with output_lock(folder, "toy"):
        pass


def test_a_folder_that_cannot_be_written_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(MegacompileError, match="writing failed"),
        output_lock(tmp_path / "file" / "below", "toy"),
    ):
        pass
