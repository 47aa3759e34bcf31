"""`megacompile report`: the views of a report, written again."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from megacompile.commands.output import out

NAME = "report"
HELP = "write a report's HTML and Markdown again from its JSON"


def add_arguments(parser: ArgumentParser) -> None:
    """The arguments of this command."""
    parser.add_argument("report", help="report.json or its folder")
    parser.add_argument("--output", "-o", help="another folder")


def run(arguments: Namespace) -> int:
    """Do it; returns the exit code."""
    from megacompile.report import read_report, write_report

    source = Path(arguments.report)
    found = read_report(source)
    beside = source if source.is_dir() else source.parent
    folder = Path(arguments.output) if arguments.output else beside
    out(f"written: {write_report(found, folder).with_suffix('.html')}")
    return 0
