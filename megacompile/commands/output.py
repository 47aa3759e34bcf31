"""What several commands print."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from megacompile.report import Report
    from megacompile.system import Progress


def out(text: str) -> None:
    """A line for whoever typed the command, or reads its output in a script."""
    print(text)


def conclude(
    arguments: Namespace,
    progress: Progress,
    report: Report,
    path: Path,
    bundle: Path | None,
    exit_code: int,
) -> int:
    """Say how a build ended and where its files are."""
    from rich.console import Console

    from megacompile.report import render_terminal

    if arguments.json:
        progress(
            "result",
            verdict=report.verdict,
            winner=report.winner,
            report=str(path),
            exit_code=exit_code,
            bundle=str(bundle) if bundle else None,
        )
        return exit_code
    Console(soft_wrap=False).print(render_terminal(report))
    out(f"report: {path.with_suffix('.html')}")
    if bundle:
        out(f"bundle: {bundle}")
    return exit_code


def described(field: Any) -> str:
    """One option of a pass or backend in words, with its default."""
    from pydantic import BaseModel

    value = None if field.is_required() else field.get_default(call_default_factory=True)
    shown = value.model_dump(mode="json") if isinstance(value, BaseModel) else value
    default = "required" if field.is_required() else f"default {json.dumps(shown)}"
    return f"{field.description or ''} ({default})".strip()
