"""`megacompile cache`: the store of finished steps."""

from __future__ import annotations

import shutil
from argparse import ArgumentParser, ArgumentTypeError, Namespace

from megacompile.commands.output import out

NAME = "cache"
HELP = "show, prune or clear the store of finished steps"


def add_arguments(parser: ArgumentParser) -> None:
    """The arguments of this command."""
    parser.add_argument("--prune", type=_bytes, metavar="SIZE", help="keep at most SIZE, e.g. 5GB")
    parser.add_argument("--clear", action="store_true")


def run(arguments: Namespace) -> int:
    """Do it; returns the exit code."""
    from megacompile.system import Cache, default_root

    store = Cache(default_root())
    store.remove_leftovers()
    if arguments.clear:
        shutil.rmtree(store.root / "entries", ignore_errors=True)
        out(f"cleared: {store.root}")
        return 0
    if arguments.prune is not None:
        removed, freed = store.prune(arguments.prune)
        out(f"removed {removed} entries, {freed / 1e6:.1f} MB")
    entries = store.entries()
    out(f"{store.root}: {len(entries)} entries, {sum(e[1] for e in entries) / 1e6:.1f} MB")
    return 0


def _bytes(text: str) -> int:
    from pydantic import ByteSize, TypeAdapter, ValidationError

    given = text.strip()
    unit = "" if given[-1:] in "bB" else "B"  # 5G means 5GB
    try:
        return TypeAdapter(ByteSize).validate_python(given + unit)
    except ValidationError as error:
        raise ArgumentTypeError(f"'{text}' is no size; write e.g. 500MB or 5GB") from error
