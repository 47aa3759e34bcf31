"""The command line: arguments only. What the commands do stands in `commands`."""

from __future__ import annotations

import argparse
import re
import sys

from megacompile import __version__
from megacompile.errors import MegacompileError


def main(argv: list[str] | None = None) -> None:
    """Entry point. Exit codes: 0 a winner (or the command did its job); 2 spec, plan, model or
    data invalid; 3 nothing inside the budget, or nothing faster than the baseline; 4 nothing
    could be built; 130 interrupted."""
    arguments = parser().parse_args(argv)
    from megacompile import commands

    try:
        sys.exit(getattr(commands, arguments.command.replace("-", "_"))(arguments))
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

    def command(name: str, text: str) -> argparse.ArgumentParser:
        return commands.add_parser(name, help=text, description=text)

    one = command("init", "write a commented spec for a model, after looking at it")
    one.add_argument(
        "model", help="FILE.py:CALLABLE, package.module:CALLABLE, or an .onnx, .pt2 or .pt file"
    )
    one.add_argument(
        "--output", "-o", help="the spec to write; default: NAME.yaml beside the model"
    )

    one = command("build", "build, verify, measure and judge all candidates of a spec")
    one.add_argument("spec")
    one.add_argument("--build-dir", default="build", help="bundles go to BUILD_DIR/NAME")
    one.add_argument("--report-dir", help="the report's folder; default: reports/NAME")
    one.add_argument("--dump", metavar="DIR", help="write every intermediate form there")
    one.add_argument(
        "--verify",
        choices=("each", "final"),
        default="each",
        help="final: only engines; the guilty step is found by bisection",
    )
    again = one.add_mutually_exclusive_group()
    again.add_argument("--resume", action="store_true", help="use finished steps (the default)")
    again.add_argument("--fresh", action="store_true", help="use no stored step")
    one.add_argument("--json", action="store_true", help="one JSON event per line")

    one = command("plan", "show the steps of every candidate without running them")
    one.add_argument("spec", nargs="+")
    one.add_argument("--json", action="store_true")
    one.add_argument(
        "--check-operators",
        action="store_true",
        help="run the passes, and the "
        "backends' own parsers over the result: what would they not take?",
    )
    one = command("validate", "check specs, and say nothing else")
    one.add_argument("spec", nargs="+")
    command("schema", "print the JSON schema of specs, with all installed passes' options")
    for name, text in (
        ("passes", "list the installed passes and their options"),
        ("backends", "list the backends, their options, and whether they can run"),
        ("doctor", "measure this machine's ceilings and check what is installed"),
    ):
        command(name, text).add_argument("--json", action="store_true")

    one = command("run", "run a bundle on inputs from a file")
    one.add_argument("bundle")
    one.add_argument("--input", "-i", required=True, help="an .npz file, one array per input")
    one.add_argument("--output", "-o", help="an .npz file to write")
    one.add_argument("--threads", type=int)
    one = command("bench", "check and time a bundle on this machine")
    one.add_argument("bundle")
    one.add_argument("--seconds", type=float, default=20.0, help="time limit of each point")
    one.add_argument("--json", action="store_true")
    one = command("finish", "verify, measure and judge a bundle on the hardware it was built for")
    one.add_argument("bundle")
    one.add_argument("--report-dir", help="the report's folder; default: reports/NAME")
    one.add_argument("--seconds", type=float, help="time limit of each point; default: the spec's")
    one.add_argument("--json", action="store_true", help="one JSON event per line")
    one = command("export-triton", "add a bundle to a model repository of Triton Inference Server")
    one.add_argument("bundle")
    one.add_argument("repository", help="the folder; made if it is not there")
    one.add_argument(
        "--new-config",
        action="store_true",
        help="replace batching, instances, warm-up and version policy of a model that is there",
    )
    one = command(
        "write-lmdb", "write training data into an LMDB database, for `batches: lmdb:OUT`"
    )
    one.add_argument(
        "source",
        help="FILE.py:NAME or package.module:NAME that is or gives a "
        "Dataset or batches; npz:FILE; arrays:FOLDER",
    )
    one.add_argument("out", help="the folder to make")
    one.add_argument(
        "--names",
        nargs="+",
        default=[],
        metavar="NAME",
        help="names of the members "
        "of samples that are tuples, or the entries to take of those that are dicts",
    )
    one.add_argument("--limit", type=_count, metavar="N", help="write the first N samples")
    one.add_argument("--overwrite", action="store_true", help="replace a database that is there")
    one = command("report", "write a report's HTML and Markdown again from its JSON")
    one.add_argument("report", help="report.json or its folder")
    one.add_argument("--output", "-o", help="another folder")
    one = command("diff", "compare two reports: what is significantly better or worse")
    one.add_argument("before")
    one.add_argument("after")
    one.add_argument("--json", action="store_true")
    one.add_argument("--fail-on-worse", action="store_true", help="exit 3 if anything is worse")
    one = command("cache", "show, prune or clear the store of finished steps")
    one.add_argument("--prune", type=_bytes, metavar="SIZE", help="keep at most SIZE, e.g. 5GB")
    one.add_argument("--clear", action="store_true")
    return top


def _count(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is no number of samples; write e.g. 1000")
    return int(text)


def _bytes(text: str) -> int:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kMGT]?)i?B?", text.strip())
    if found is None:
        raise argparse.ArgumentTypeError(f"'{text}' is no size; write e.g. 500MB or 5GB")
    factor = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}[found[2]]
    return int(float(found[1]) * factor)
