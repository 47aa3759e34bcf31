"""What a library's error says: its first line, and the user's code that it points at."""

from __future__ import annotations

import re
import traceback
from pathlib import Path

from megacompile import errors

# A user's project may have any name, also one of ours: whole folders are compared.
OURS = (Path(__file__).parent, Path(errors.__file__).parent)
FRAME = re.compile(r'File "([^"]+)", line (\d+)')


def first_line(error: BaseException) -> str:
    """The first line of a library's message, which is often a page long."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def user_frame(error: BaseException) -> str | None:
    """FILE:LINE of the user's code that an error of a tracer points at."""
    frames = [(f.filename, f.lineno or 0) for f in traceback.extract_tb(error.__traceback__)]
    frames += [(file, int(line)) for file, line in FRAME.findall(str(error))]
    own = [f"{file}:{line}" for file, line in frames if _is_users(file)]
    return own[-1] if own else None


def _is_users(file: str) -> bool:
    folders = (*OURS, _torch())
    return not file.startswith("<") and not any(Path(file).is_relative_to(f) for f in folders)


def _torch() -> Path:
    import torch

    return Path(torch.__file__).parent
