"""`megacompile run`: a bundle on inputs from a file."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from megacompile.commands.output import out
from megacompile.errors import SpecError

NAME = "run"
HELP = "run a bundle on inputs from a file"


def add_arguments(parser: ArgumentParser) -> None:
    """The arguments of this command."""
    parser.add_argument("bundle")
    parser.add_argument("--input", "-i", required=True, help="an .npz file, one array per input")
    parser.add_argument("--output", "-o", help="an .npz file to write")
    parser.add_argument("--threads", type=int)


def run(arguments: Namespace) -> int:
    """Do it; returns the exit code."""
    from megacompile.engines import load_compiled
    from megacompile.models import load_arrays, save_arrays

    model = load_compiled(arguments.bundle, arguments.threads)
    path = Path(arguments.input)
    try:
        given = load_arrays(path)
    except (OSError, ValueError) as error:
        raise SpecError(
            what="the input file can't be read",
            where=str(path),
            cause=str(error),
            expected="an .npz file with one array per input",
        ) from error
    outputs = model.leaves(given)
    if arguments.output:
        save_arrays(Path(arguments.output), outputs)
        out(f"written: {arguments.output}")
    for name, array in outputs.items():
        out(f"{name}: {array.dtype} {list(array.shape)}")
    return 0
