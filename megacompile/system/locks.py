"""One build at a time for one output folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from megacompile.errors import MegacompileError
from megacompile.system.disk import disk_error


@contextmanager
def output_lock(folder: Path, name: str) -> Iterator[None]:
    """Hold `FOLDER/.NAME.lock`; the system frees it when the process ends, however it ends.

    Raises:
        MegacompileError: another build holds it, or the folder can't be written.
    """
    path = folder / f".{name}.lock"
    # Who holds it stands beside it: a second process that only tries empties the lock's own file.
    owner = folder / f".{name}.owner"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        held = FileLock(path, timeout=0).acquire()
    except Timeout as error:
        raise MegacompileError(
            what=f"another build of '{name}' is running",
            where=str(folder),
            got=f"process {_read(owner)}",
            remedy="wait for it, or build into another folder with --build-dir",
        ) from error
    except OSError as error:
        raise disk_error(error, path) from error
    with held:
        try:
            owner.write_text(str(os.getpid()))
        except OSError as error:
            raise disk_error(error, owner) from error
        yield


def _read(owner: Path) -> str:
    try:
        return owner.read_text().strip() or "unknown"
    except OSError:
        return "unknown"
