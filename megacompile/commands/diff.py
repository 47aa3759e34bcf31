"""`megacompile diff`: one report against another."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from megacompile.commands.output import out

NAME = "diff"
HELP = "compare two reports: what is significantly better or worse"


def add_arguments(parser: ArgumentParser) -> None:
    """The arguments of this command."""
    parser.add_argument("before")
    parser.add_argument("after")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--fail-on-worse", action="store_true", help="exit 3 if anything is worse")


def run(arguments: Namespace) -> int:
    """Do it; returns the exit code."""
    from megacompile.report import diff_reports, read_report, render_diff

    found = diff_reports(read_report(Path(arguments.before)), read_report(Path(arguments.after)))
    out(found.model_dump_json(indent=2) if arguments.json else render_diff(found))
    return 3 if arguments.fail_on_worse and found.worse else 0
