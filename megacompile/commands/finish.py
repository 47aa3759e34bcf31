"""`megacompile finish`: a bundle of `build` on the hardware it was built for."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from megacompile.commands.output import conclude

NAME = "finish"
HELP = "verify, measure and judge a bundle on the hardware it was built for"


def add_arguments(parser: ArgumentParser) -> None:
    """The arguments of this command."""
    parser.add_argument("bundle")
    parser.add_argument("--report-dir", help="the report's folder; default: reports/NAME")
    parser.add_argument(
        "--seconds", type=float, help="time limit of each point; default: the spec's"
    )
    parser.add_argument("--json", action="store_true", help="one JSON event per line")


def run(arguments: Namespace) -> int:
    """Do it; returns the exit code."""
    from megacompile.builder import EXIT_CODES
    from megacompile.deploy import finish_bundle
    from megacompile.system import Progress

    progress = Progress("json" if arguments.json else "auto")
    with progress.running():
        found = finish_bundle(
            Path(arguments.bundle),
            Path(arguments.report_dir) if arguments.report_dir else None,
            lambda message: progress("say", message=message),
            arguments.seconds,
        )
    return conclude(
        arguments,
        progress,
        found.report,
        found.report_path,
        found.bundle,
        EXIT_CODES[found.report.verdict],
    )
