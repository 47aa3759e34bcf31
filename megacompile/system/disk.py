"""A failed write in words."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from megacompile.errors import MegacompileError


def disk_error(error: OSError, where: Path) -> MegacompileError:
    """What a failed write means: a full disk, a folder without permission."""
    # shutil's copies collect several errors as text, without a number.
    full = error.errno == errno.ENOSPC or os.strerror(errno.ENOSPC) in str(error)
    return MegacompileError(
        what="writing failed" + (": the disk is full" if full else ""),
        where=str(error.filename or where),
        cause=os.strerror(errno.ENOSPC) if full else error.strerror or str(error),
        remedy="free some space (`megacompile cache --prune 1GB`) or set MEGACOMPILE_CACHE to a "
        "larger disk, and run the same command again: finished steps are kept",
    )
