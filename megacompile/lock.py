"""One build at a time for one output folder."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from megacompile.cache import disk_error
from megacompile.errors import MegacompileError


@contextmanager
def output_lock(folder: Path, name: str) -> Iterator[None]:
    """Hold `FOLDER/.NAME.lock`; the system frees it when the process ends, however it ends.

    Raises:
        MegacompileError: another build holds it, or the folder can't be written.
    """
    path = folder / f".{name}.lock"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = open(path, "a+")  # noqa: SIM115 - held open as long as the lock
    except OSError as error:
        raise disk_error(error, path) from error
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.seek(0)
            owner = file.read().strip() or "unknown"
            raise MegacompileError(
                what=f"another build of '{name}' is running",
                where=str(folder),
                got=f"process {owner}",
                remedy="wait for it, or build into another folder with --build-dir",
            ) from error
        file.seek(0)
        file.truncate()
        file.write(str(os.getpid()))
        file.flush()
        yield
    finally:
        file.close()
