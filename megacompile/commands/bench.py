"""`megacompile bench`: a bundle checked and timed here."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from pathlib import Path

from megacompile.commands.output import out

NAME = "bench"
HELP = "check and time a bundle on this machine"


def add_arguments(parser: ArgumentParser) -> None:
    """The arguments of this command."""
    parser.add_argument("bundle")
    parser.add_argument("--seconds", type=float, default=20.0, help="time limit of each point")
    parser.add_argument("--json", action="store_true")


def run(arguments: Namespace) -> int:
    """Do it; returns the exit code."""
    from megacompile.deploy import bench_bundle, render_bench

    found = bench_bundle(Path(arguments.bundle), arguments.seconds)
    out(json.dumps(found, indent=2) if arguments.json else render_bench(found))
    return 0
