"""The child's end of a worker process: `python -m megacompile.system.child MODULE:FUNCTION`.

A file of its own: what is run as `__main__` must not be imported under its name too.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import signal
import sys
from collections.abc import Iterator
from typing import Any

from megacompile.errors import MegacompileError, WorkerError


def _die_with_parent(parent: int) -> None:
    """A worker whose parent was killed must not go on computing (Linux: PR_SET_PDEATHSIG)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(1)


def _requests() -> Iterator[dict[str, Any]]:
    for line in sys.stdin.buffer:
        yield json.loads(line)


def main() -> None:
    """Run the function that the parent named, until its requests end."""
    function, descriptor, parent = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    _die_with_parent(parent)
    channel = os.fdopen(descriptor, "w", encoding="utf-8")

    def send(event: dict[str, Any]) -> None:
        sys.stdout.flush()  # after the last event the process may be killed: its log stays whole
        channel.write(json.dumps(event) + "\n")
        channel.flush()

    module, _, name = function.partition(":")
    try:
        getattr(importlib.import_module(module), name)(_requests(), send)
    except MegacompileError as error:
        problems = getattr(error, "problems", None) or [error]
        send({"event": "error", "error": problems[0].to_dict()})
    except MemoryError:
        send({"event": "error", "error": WorkerError(what="out of memory").to_dict()})
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
