"""`megacompile validate`: is a spec right?"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from megacompile.commands.output import out

NAME = "validate"
HELP = "check specs, and say nothing else"


def add_arguments(parser: ArgumentParser) -> None:
    """The arguments of this command."""
    parser.add_argument("spec", nargs="+")


def run(arguments: Namespace) -> int:
    """Do it; returns the exit code."""
    from megacompile.builder import quantized_source, resolve_target
    from megacompile.plan import make_plan
    from megacompile.spec import load_spec

    for name in arguments.spec:
        loaded = load_spec(Path(name))
        make_plan(loaded, resolve_target, quantized_source(loaded))
        out(f"{name}: valid")
    return 0
