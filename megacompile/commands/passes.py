"""`megacompile passes`: what is installed."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from megacompile.commands.output import described, out

NAME = "passes"
HELP = "list the installed passes and their options"


def add_arguments(parser: ArgumentParser) -> None:
    """The arguments of this command."""
    parser.add_argument("--json", action="store_true")


def run(arguments: Namespace) -> int:
    """Do it; returns the exit code."""
    from megacompile.plan import consumes, produces, registry

    rows: list[dict[str, Any]] = []
    for name in sorted(registry.pass_table()):
        for cls in registry.pass_classes(name, Path()):
            options = {key: described(field) for key, field in cls.model_fields.items()}
            rows.append(
                {
                    "name": name,
                    "consumes": consumes(cls),
                    "produces": produces(cls),
                    "effect": cls.effect.value,
                    "inserted_by_planner": cls.insertable,
                    "options": options,
                }
            )
    if arguments.json:
        out(json.dumps(rows, indent=2))
        return 0
    shown: set[str] = set()
    for row in rows:
        mark = "  (inserted by the planner)" if row["inserted_by_planner"] else ""
        out(f"{row['name']:<16} {row['consumes']:>8} -> {row['produces']:<8} {row['effect']}{mark}")
        if row["name"] not in shown:
            shown.add(row["name"])
            for key, text in row["options"].items():
                out(f"    {key}: {text}")
    return 0
