"""`megacompile build`: the main job."""

from __future__ import annotations

import atexit
import os
from argparse import ArgumentParser, Namespace
from pathlib import Path

from megacompile.commands.output import conclude

NAME = "build"
HELP = "build, verify, measure and judge all candidates of a spec"


def add_arguments(parser: ArgumentParser) -> None:
    """The arguments of this command."""
    parser.add_argument("spec")
    parser.add_argument("--build-dir", default="build", help="bundles go to BUILD_DIR/NAME")
    parser.add_argument("--report-dir", help="the report's folder; default: reports/NAME")
    parser.add_argument("--dump", metavar="DIR", help="write every intermediate form there")
    parser.add_argument(
        "--verify",
        choices=("each", "final"),
        default="each",
        help="final: only engines; the guilty step is found by bisection",
    )
    again = parser.add_mutually_exclusive_group()
    again.add_argument("--resume", action="store_true", help="use finished steps (the default)")
    again.add_argument("--fresh", action="store_true", help="use no stored step")
    parser.add_argument("--json", action="store_true", help="one JSON event per line")


def run(arguments: Namespace) -> int:
    """Do it; returns the exit code."""
    from megacompile.builder import Options, build
    from megacompile.system import Progress

    if _follows():
        return 0
    options = Options(
        build_dir=Path(arguments.build_dir),
        report_dir=Path(arguments.report_dir) if arguments.report_dir else None,
        resume=not arguments.fresh,
        dump=Path(arguments.dump) if arguments.dump else None,
        verify_each=arguments.verify == "each",
    )
    progress = Progress("json" if arguments.json else "auto")
    with progress.running():
        result = build(Path(arguments.spec), options, progress)
    return conclude(
        arguments, progress, result.report, result.report_path, result.bundle, result.exit_code
    )


def _follows() -> bool:
    """Under torchrun the first process builds; the others help it with distributed steps, and
    this returns when it is done."""
    if int(os.environ.get("WORLD_SIZE", "1")) < 2 or "TORCHELASTIC_RUN_ID" not in os.environ:
        return False
    from megacompile.measure.training.crew import dismiss, follow

    if os.environ["RANK"] == "0":
        atexit.register(dismiss)
        return False
    follow()
    return True
