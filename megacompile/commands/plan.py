"""`megacompile plan`: what a build would do, without doing it."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from megacompile.commands.output import out
from megacompile.errors import MegacompileError

NAME = "plan"
HELP = "show the steps of every candidate without running them"


def add_arguments(parser: ArgumentParser) -> None:
    """The arguments of this command."""
    parser.add_argument("spec", nargs="+")
    parser.add_argument("--json", action="store_true")
    parser.add_argument(
        "--check-operators",
        action="store_true",
        help="run the passes, and the backends' own parsers over the result: "
        "what would they not take?",
    )


def run(arguments: Namespace) -> int:
    """Do it; returns the exit code."""
    from megacompile.builder import quantized_source, resolve_target
    from megacompile.commands.operators import operators_refused
    from megacompile.commands.plan_view import plan_as_data, render_plan, stored_steps
    from megacompile.plan import make_plan
    from megacompile.spec import load_spec
    from megacompile.system import Cache, default_root

    status = 0
    problems: list[MegacompileError] = []
    for name in arguments.spec:
        try:
            loaded = load_spec(Path(name))
            found = make_plan(loaded, resolve_target, quantized_source(loaded))
            stored = stored_steps(found, loaded.base, Cache(default_root()))
        except MegacompileError as error:
            problems.append(error)
            continue
        refused = operators_refused(loaded, found) if arguments.check_operators else None
        if arguments.json:
            out(json.dumps(plan_as_data(found, stored, refused), indent=2))
        else:
            out(render_plan(found, stored, refused))
        if refused is not None and any(refused.values()):
            status = 4
    for problem in problems:
        print(problem, file=sys.stderr)
        status = problem.exit_code
    return status
