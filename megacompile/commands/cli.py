"""The command line as a whole: which commands there are, and how they end."""

from __future__ import annotations

import argparse
import sys
from types import ModuleType

from megacompile import __version__
from megacompile.commands import (
    backends,
    bench,
    build,
    cache,
    diff,
    doctor,
    export_triton,
    finish,
    init,
    passes,
    plan,
    report,
    run,
    schema,
    validate,
    write_lmdb,
)
from megacompile.errors import MegacompileError

# In the order of `--help`. A command's file has NAME, HELP, `add_arguments` and `run`, and imports
# at its top only what `--help` needs.
COMMANDS: tuple[ModuleType, ...] = (
    init,
    build,
    plan,
    validate,
    schema,
    passes,
    backends,
    doctor,
    run,
    bench,
    finish,
    export_triton,
    write_lmdb,
    report,
    diff,
    cache,
)


def main(argv: list[str] | None = None) -> None:
    """Entry point. Exit codes: 0 a winner (or the command did its job); 2 spec, plan, model or
    data invalid; 3 nothing inside the budget, or nothing faster than the baseline; 4 nothing
    could be built; 130 interrupted."""
    arguments = parser().parse_args(argv)
    try:
        sys.exit(arguments.run(arguments))
    except MegacompileError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        print("interrupted; the same command goes on from the last finished step", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output is gone: nothing left to say
        sys.exit(1)


def parser() -> argparse.ArgumentParser:
    """All commands and their options."""
    top = argparse.ArgumentParser(
        prog="megacompile",
        description="One spec in, the fastest right artifact and a believable report out.",
    )
    top.add_argument("--version", action="version", version=f"megacompile {__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for module in COMMANDS:
        one = commands.add_parser(module.NAME, help=module.HELP, description=module.HELP)
        module.add_arguments(one)
        one.set_defaults(run=module.run)
    return top
