"""`megacompile init`: a first spec for a model."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from megacompile.commands.output import out

NAME = "init"
HELP = "write a commented spec for a model, after looking at it"


def add_arguments(parser: ArgumentParser) -> None:
    """The arguments of this command."""
    parser.add_argument(
        "model", help="FILE.py:CALLABLE, package.module:CALLABLE, or an .onnx, .pt2 or .pt file"
    )
    parser.add_argument(
        "--output", "-o", help="the spec to write; default: NAME.yaml beside the model"
    )


def run(arguments: Namespace) -> int:
    """Do it; returns the exit code."""
    from megacompile.commands.spec_writer import to_fill_in, write_spec

    path = write_spec(arguments.model, Path(arguments.output) if arguments.output else None)
    waiting = to_fill_in(path)
    out(f"written: {path}")
    for line in waiting:
        out(line)
    out(f"next: {'fill in the lines above, then ' if waiting else ''}megacompile plan {path}")
    return 0
