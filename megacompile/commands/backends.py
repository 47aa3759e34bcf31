"""`megacompile backends`: what is installed, and what can run here."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from typing import Any

from megacompile.commands.output import described, out

NAME = "backends"
HELP = "list the backends, their options, and whether they can run"


def add_arguments(parser: ArgumentParser) -> None:
    """The arguments of this command."""
    parser.add_argument("--json", action="store_true")


def run(arguments: Namespace) -> int:
    """Do it; returns the exit code."""
    from megacompile.engines import here
    from megacompile.plan import registry

    machine = here()
    rows: list[dict[str, Any]] = []
    for name in sorted(registry.backend_table()):
        cls = registry.backend_class(name)
        found = cls().availability(machine)
        rows.append(
            {
                "name": name,
                "accepts": list(cls.accepts),
                "available": found.yes,
                "reason": found.reason,
                "remedy": found.remedy,
                "options": {k: described(f) for k, f in cls.model_fields.items()},
            }
        )
    if arguments.json:
        out(json.dumps(rows, indent=2))
        return 0
    for row in rows:
        state = "available" if row["available"] else f"unavailable: {row['reason']}"
        out(f"{row['name']:<14} takes {', '.join(row['accepts']):<9} {state}")
        if row["remedy"]:
            out(f"    to do: {row['remedy']}")
        for key, text in row["options"].items():
            out(f"    {key}: {text}")
    return 0
