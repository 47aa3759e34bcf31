"""`megacompile write-lmdb`: training data into a database."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from pathlib import Path

from megacompile.commands.output import out

NAME = "write-lmdb"
HELP = "write training data into an LMDB database, for `batches: lmdb:OUT`"


def add_arguments(parser: ArgumentParser) -> None:
    """The arguments of this command."""
    parser.add_argument(
        "source",
        help="FILE.py:NAME or package.module:NAME that is or gives a Dataset or batches; "
        "npz:FILE; arrays:FOLDER",
    )
    parser.add_argument("out", help="the folder to make")
    parser.add_argument(
        "--names",
        nargs="+",
        default=[],
        metavar="NAME",
        help="names of the members of samples that are tuples, or the entries to take of those "
        "that are dicts",
    )
    parser.add_argument("--limit", type=_count, metavar="N", help="write the first N samples")
    parser.add_argument("--overwrite", action="store_true", help="replace a database that is there")


def run(arguments: Namespace) -> int:
    """Do it; returns the exit code."""
    from megacompile.system import Progress
    from megacompile.training import DATABASE, write_source

    out_path = Path(arguments.out)
    progress = Progress("auto")
    with progress.running():
        header = write_source(
            arguments.source,
            Path(),
            out_path,
            progress,
            arguments.names,
            arguments.limit,
            arguments.overwrite,
        )
    size = (out_path / DATABASE).stat().st_size
    out(f"written: {out_path}: {header.samples:,} samples, {size / 1e6:.1f} MB")
    for entry in header.entries:
        shape = "shapes differ" if entry.shape is None else list(entry.shape)
        out(f"    {entry.name}: {entry.dtype} {shape}")
    out(f"use it with `batches: lmdb:{out_path}`")
    return 0


def _count(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise ArgumentTypeError(f"'{text}' is no number of samples; write e.g. 1000")
    return int(text)
